package clusterimport

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

const agentDeployment = "/apis/apps/v1/namespaces/" + system + "/deployments/fleet-agent"

var agentPod = map[string]any{
	"apiVersion": "v1", "kind": "Pod",
	"metadata": map[string]any{"namespace": system, "name": "fleet-agent-1", "resourceVersion": "8"},
}

// An agent that is told to stop may be in the middle of deploying its own Bundle, and ends only after it.
func TestAnAgentThatPutsItselfBackWhileItEndsIsGoneInTheEnd(t *testing.T) {
	m := newFakeMember(t)
	m.put(agentDeployment, map[string]any{"kind": "Deployment"})
	m.pods = []any{agentPod}
	m.ended = func() { m.objects[agentDeployment] = map[string]any{"kind": "Deployment"} }
	assert.Nil(t, m.connect(t).clean(t.Context(), system))
	assert.Empty(t, m.paths())
	assert.Empty(t, m.pods, "they were waited for")
}

func TestAFarewellWaitsForTheAgentToEnd(t *testing.T) {
	m := newFakeMember(t)
	w := newWorkloads(m)
	m.pods = []any{agentPod}
	m.ended = func() { m.objects[agentDeployment] = map[string]any{"kind": "Deployment"} }
	assert.Nil(t, w.farewell(t, leaver()).run(t.Context()))
	assert.NotContains(t, m.paths(), agentDeployment)
}

func TestWhatStoppingAnAgentMakesOfAFault(t *testing.T) {
	for _, row := range []struct {
		name, how, reason string
		at                int
	}{
		{"the Deployment cannot be removed", "out", fleet.ReasonMemberError, 0},
		{"its removal is forbidden", "forbid", fleet.ReasonForbidden, 0},
		{"nobody says which Pods there are", "out", fleet.ReasonMemberError, 1},
		{"to look at Pods is forbidden", "forbid", fleet.ReasonForbidden, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			m.put(agentDeployment, map[string]any{"kind": "Deployment"})
			m.fault = failAt(row.at, row.how)
			problem := m.connect(t).stop(t.Context(), system)
			require.NotNil(t, problem)
			assert.Equal(t, row.reason, problem.reason)
		})
	}
}

// disabled is the hub's own cluster, with an agent that the configuration no longer wants.
func disabled(t *testing.T) (*office, *fakeMember, *fleet.Cluster) {
	t.Helper()
	c := fresh()
	c.Name = "local"
	c.Status.AgentDeployedGeneration = ptr.To(int64(0))
	c.Status.Import = &fleet.ImportStatus{AgentNamespace: system}
	o, m := workFor(t, c)
	o.Config.Set(config.Hub{Bootstrap: config.Bootstrap{Namespace: "ns", LocalAgentDisabled: true}})
	m.put(agentDeployment, map[string]any{"kind": "Deployment"})
	m.put("/api/v1/namespaces/kube-system", map[string]any{"kind": "Namespace", "metadata": map[string]any{"name": "kube-system", "uid": "hub"}})
	require.NoError(t, o.kube.Tracker().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "hub"}}))
	return o, m, c
}

func TestALocalAgentIsRemovedOnceNothingPutsItBack(t *testing.T) {
	o, m, c := disabled(t)
	own := registration.ClusterNamespace("ns", "local") + "/fleet-agent-local"
	o.deployments.names = []string{own}
	out := o.Reconcile(t.Context(), c)
	assert.True(t, out.IsWait())
	assert.Contains(t, out.Message, own)
	assert.Contains(t, m.paths(), agentDeployment, "it would come back")
	assert.Equal(t, time.Second, out.After, "nothing else brings the Cluster back where BundleDeployments are not watched")

	o.deployments.names = nil
	out = o.until(t, c)
	assert.True(t, out.IsDone())
	assert.Equal(t, fleet.ReasonLocalAgentDisabled, out.Reason)
	assert.NotContains(t, m.paths(), agentDeployment)
	assert.Nil(t, c.Status.AgentDeployedGeneration)
	assert.Nil(t, c.Status.Import)
}

func TestALocalAgentStaysWhileTheHubCannotSayWhetherItWouldComeBack(t *testing.T) {
	o, m, c := disabled(t)
	o.deployments.err = errors.New("out")
	out := o.Reconcile(t.Context(), c)
	assert.False(t, out.IsDone())
	assert.Contains(t, out.Message+errorOf(out.Err), "out")
	assert.Contains(t, m.paths(), agentDeployment)
}

func errorOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
