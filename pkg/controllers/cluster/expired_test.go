package cluster

import (
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
)

func atNoon() *app.Context { return &app.Context{Clock: clocktesting.NewFakeClock(noon)} }

func TestRegisteredTellsOfACredentialThatHasEnded(t *testing.T) {
	for _, row := range []struct {
		name       string
		end        time.Time
		kubeconfig string
		reason     string
		after      time.Duration
		says       []string
	}{
		{"of an agent that installed itself", noon.Add(-time.Hour), "", fleet.ReasonCredentialExpired, 0, []string{
			"ended at 2026-01-02T11:00:00Z", "`muster -n ns token create NAME --cluster c -o values`",
		}},
		{"of one that the hub installs", noon.Add(-time.Hour), "k", fleet.ReasonCredentialExpired, 0, []string{"the hub installs the agent again"}},
		{"not yet", noon.Add(time.Hour), "", fleet.ReasonRegistered, time.Hour + time.Minute, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
			c.Spec.ClientID, c.Spec.KubeConfigSecret = "id", row.kubeconfig
			c.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: corev1.ConditionFalse}}
			c.Status.Agent.LastSeen, c.Status.Agent.CredentialExpires = metav1.NewTime(noon.Add(-day)), &metav1.Time{Time: row.end}
			granted := request("a", day, corev1.ConditionTrue, fleet.ReasonGranted)
			out := registeredStep{&handler{Context: atNoon(), requests: requests{all: []*fleet.ClusterRegistration{granted}}}}.Reconcile(t.Context(), c)
			assert.Equal(t, row.reason, out.Reason)
			assert.Equal(t, row.after, out.After, "it is looked at again when it ends")
			for _, part := range row.says {
				assert.Contains(t, out.Message, part)
			}
		})
	}
}

const day = 24 * time.Hour
