package cluster

import (
	"context"
	"errors"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// counted is a step that counts its passes.
type counted struct {
	condition string
	out       result.Result
	passes    int
}

func (c *counted) Condition() string { return c.condition }

func (c *counted) Forget(string) {}

func (c *counted) Reconcile(context.Context, *fleet.Cluster) result.Result {
	c.passes++
	return c.out
}

type leaving struct{ counted }

func (*leaving) Leaves() {}

func TestWhichStepsLookAtACluster(t *testing.T) {
	done, broken := result.Done("Good", ""), result.Retry("Bad", errors.New("out"))
	for _, row := range []struct {
		name      string
		elsewhere bool
		ground    result.Result
		want      [3]int // first, ordinary, leaver
	}{
		{"all of them", false, done, [3]int{1, 1, 1}},
		{"none without its namespace", false, broken, [3]int{1, 0, 0}},
		{"those that take something back", true, done, [3]int{1, 0, 1}},
	} {
		first, ordinary, leaver := &counted{"First", row.ground, 0}, &counted{"Ordinary", broken, 0}, &leaving{counted{"Leaver", done, 0}}
		h := &handler{Context: &app.Context{Clock: clocktesting.NewFakeClock(noon)}, steps: []Step{first, ordinary, leaver}}
		c := &fleet.Cluster{}
		if row.elsewhere {
			c.Labels = map[string]string{fleet.ClusterManagementLabel: "x"}
		}
		h.runSteps(t.Context(), c)
		assert.Equal(t, row.want, [3]int{first.passes, ordinary.passes, leaver.passes}, row.name)
	}
}

func TestAVoidCredentialIsToldWithWhatFollows(t *testing.T) {
	void := request("a", 0, corev1.ConditionFalse, fleet.ReasonCredentialRevoked)
	silent := []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: corev1.ConditionFalse}}
	for _, row := range []struct {
		name       string
		kubeconfig string
		requests   []*fleet.ClusterRegistration
		conditions result.Conditions
		says       []string
	}{
		{name: "revoked, and the hub can help", kubeconfig: "k", requests: []*fleet.ClusterRegistration{void}, says: []string{"of a", "the hub installs the agent again"}},
		{name: "revoked, and a person has to", requests: []*fleet.ClusterRegistration{void}, says: []string{"of a", "`muster -n ns token create NAME --cluster c -o values`", "Secret fleet-agent-bootstrap"}},
		{name: "lost, and the hub can help", kubeconfig: "k", conditions: silent, says: []string{"its ClusterRegistration is gone", "the hub installs"}},
		{name: "lost, and a person has to", conditions: silent, says: []string{"its ClusterRegistration is gone", "`muster -n ns token create NAME --cluster c -o values`"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: fleet.ClusterSpec{ClientID: "id", KubeConfigSecret: row.kubeconfig}}
			c.Status.Agent.LastSeen, c.Status.Conditions = metav1.NewTime(noon), row.conditions
			out := registeredStep{&handler{Context: atNoon(), requests: requests{all: row.requests}}}.Reconcile(t.Context(), c)
			assert.Equal(t, fleet.ReasonCredentialRevoked, out.Reason)
			assert.True(t, out.IsStalled())
			for _, part := range row.says {
				assert.Contains(t, out.Message, part)
			}
		})
	}
}
