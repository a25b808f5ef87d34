package clusterimport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

const agentDeployment = "/apis/apps/v1/namespaces/" + system + "/deployments/fleet-agent"

var agentPod = map[string]any{
	"apiVersion": "v1", "kind": "Pod",
	"metadata": map[string]any{"namespace": system, "name": "fleet-agent-1", "resourceVersion": "8"},
}

// An agent that is stopped may be deploying its own Bundle, and ends only after that.
func TestStopAgent_redeployedWhileItEnds(t *testing.T) {
	m := newFakeMember(t)
	m.put(agentDeployment, map[string]any{"kind": "Deployment"})
	m.pods = []any{agentPod}
	m.ended = func() { m.objects[agentDeployment] = map[string]any{"kind": "Deployment"} }
	assert.Nil(t, m.removeAgent(t, system))
	assert.Empty(t, m.paths())
	assert.Empty(t, m.pods, "the Pods were waited for")
}

// A hostile member answers with a page after each page.
func TestStopAgent_listWithoutEnd(t *testing.T) {
	m := newFakeMember(t)
	m.put(agentDeployment, map[string]any{"kind": "Deployment"})
	m.pods, m.morePods = []any{agentPod}, "more"
	ended, problem := m.connect(t).stopAgent(t.Context(), system, 1500*time.Millisecond)
	assert.Nil(t, problem)
	assert.False(t, ended, "an empty page may not be the last one")
	assert.Equal(t, 2, strings.Count(m.transcript(), "/pods?"))
	assert.NotContains(t, m.transcript(), "continue=more")
}

// While another member of the workspace has the turn for large responses, the hub sees that a large Pod has ended.
func TestStopAgent_largePod(t *testing.T) {
	m := newFakeMember(t)
	m.put(agentDeployment, map[string]any{"kind": "Deployment"})
	m.pods = []any{map[string]any{"metadata": agentPod["metadata"], "spec": strings.Repeat("x", int(smallLimits.Bytes))}}
	c := m.connect(t)
	require.True(t, c.large.Of.TryAcquire(largeResponses))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended, problem := c.stopAgent(ctx, system, stopTimeout)
	assert.Nil(t, problem)
	assert.True(t, ended)
	assert.Empty(t, m.pods, "the Pod was listed")
}

// An agent that has not ended in time, or an import, creates objects while the hub deletes them.
func TestRemoveStopped_agentThatHasNotEnded(t *testing.T) {
	const (
		timeout       = 300 * time.Millisecond
		configuration = "/api/v1/namespaces/" + system + "/configmaps/fleet-agent"
		bootstrap     = "/api/v1/namespaces/" + system + "/secrets/fleet-agent-bootstrap"
	)
	binding := "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/" + agentmanifest.ClusterRoleBindingName(system)
	kindOf := map[string]string{agentDeployment: "Deployment", binding: "ClusterRoleBinding", bootstrap: "Secret"}
	for _, row := range []struct {
		name    string
		creates []string // when the hub has deleted all others
		fails   bool     // each request after that
		left    []string
	}{
		{"the agent creates objects again: removed", []string{agentDeployment, binding}, false, []string{}},
		{"an import installs an agent: it stays", []string{agentDeployment, bootstrap}, false, []string{configuration, bootstrap}},
		{"a request fails: the agent can still be recognized", []string{agentDeployment}, true, []string{configuration, agentDeployment}},
	} {
		t.Run(row.name, func(t *testing.T) {
			log := logtest.NewGlobal()
			m := newFakeMember(t)
			m.put(agentDeployment, map[string]any{"kind": "Deployment"})
			m.put(configuration, map[string]any{"kind": "ConfigMap"})
			m.fault = podNeverEnds
			c := m.connect(t)
			ended, problem := c.stopAgent(t.Context(), system, timeout)
			require.Nil(t, problem)
			assert.False(t, ended)
			require.NotNil(t, log.LastEntry())
			assert.Equal(t, "The hub no longer waits for the end of the agent's Pods in namespace "+system+" at "+m.URL, log.LastEntry().Message)

			m.fault = func(n int, w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/clusterroles/") { // the last one of the first round
					for _, path := range row.creates {
						m.objects[path] = map[string]any{"kind": kindOf[path]}
					}
					if m.fault = podNeverEnds; row.fails {
						m.fault = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
							http.Error(w, "overloaded", http.StatusInternalServerError)
							return true
						}
					}
				}
				return podNeverEnds(n, w, r)
			}
			problem = c.removeStopped(t.Context(), agentID{namespace: system}, ended, timeout, agentmanifest.OwnedObjects(system), "removing the agent's")
			assert.Equal(t, row.fails, problem != nil, problem)
			assert.ElementsMatch(t, row.left, m.paths())
		})
	}
}

// removeAgent removes the agent as when the hub's own cluster is to have none.
func (m *fakeMember) removeAgent(t *testing.T, namespace string) *failure {
	t.Helper()
	c := m.connect(t)
	ended, problem := c.stopAgent(t.Context(), namespace, stopTimeout)
	if problem != nil {
		return problem
	}
	return c.removeStopped(t.Context(), agentID{namespace: namespace}, ended, stopTimeout, agentmanifest.OwnedObjects(namespace), "removing the agent's")
}

func TestRemoveAll(t *testing.T) {
	m := newFakeMember(t)
	made := planned(t, func(in *planInput) { in.cluster.Spec.AgentNamespace = "old" })
	require.Nil(t, made.run(t, m))
	m.put("/api/v1/namespaces/old/secrets/fleet-agent", map[string]any{"kind": "Secret"})
	m.put("/api/v1/namespaces/old/secrets/of-somebody", map[string]any{"kind": "Secret"})
	m.requests = nil
	require.Nil(t, m.removeAgent(t, "old"))
	golden.Equal(t, "testdata/clean.txt", m.transcript())
	assert.Equal(t, []string{
		"/api/v1/namespaces/old", "/api/v1/namespaces/old/secrets/of-somebody", "/api/v1/namespaces/old/serviceaccounts/default",
	}, m.paths(), "the Namespace and its default ServiceAccount stay")
	require.Nil(t, m.removeAgent(t, "old"), "objects that do not exist are no error")
}

func TestStopAgent_failures(t *testing.T) {
	for _, row := range []struct {
		name, how, reason string
		at                int
	}{
		{"the deletion of the Deployment fails", "out", fleet.ReasonMemberError, 0},
		{"the deletion of the Deployment is forbidden", "forbid", fleet.ReasonForbidden, 0},
		{"the Pods cannot be listed", "out", fleet.ReasonMemberError, 1},
		{"listing Pods is forbidden", "forbid", fleet.ReasonForbidden, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			m.put(agentDeployment, map[string]any{"kind": "Deployment"})
			m.fault = failAt(row.at, row.how)
			_, problem := m.connect(t).stopAgent(t.Context(), system, stopTimeout)
			require.NotNil(t, problem)
			assert.Equal(t, row.reason, problem.reason)
		})
	}
}

// disabled is the hub's own cluster with an agent, which the configuration disables.
func disabled(t *testing.T) (*harness, *fakeMember, *fleet.Cluster) {
	t.Helper()
	c := fresh()
	c.Name = "local"
	c.Status.AgentDeployedGeneration = ptr.To(int64(0))
	c.Status.Import = &fleet.ImportStatus{AgentNamespace: system}
	h, m := importable(t, c)
	h.Config.Set(config.Hub{Bootstrap: config.Bootstrap{Namespace: "ns", LocalAgentDisabled: true}, Members: loopback})
	m.put(agentDeployment, map[string]any{"kind": "Deployment"})
	m.put("/api/v1/namespaces/kube-system", map[string]any{"kind": "Namespace", "metadata": map[string]any{"name": "kube-system", "uid": memberUID}})
	require.NoError(t, h.kube.Tracker().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: memberUID}}))
	return h, m, c
}

func TestRemoveLocalAgent(t *testing.T) {
	h, m, c := disabled(t)
	c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 5}}
	marks, _, err := agentmanifest.ImportMarks(c.Spec.AgentNamespace)
	require.NoError(t, err)
	m.put(classPath, map[string]any{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": map[string]any{
		"name": agentmanifest.PriorityClassName, "uid": "class", "labels": marks,
	}})
	own := registration.ClusterNamespace("ns", "local") + "/fleet-agent-local"
	deployments := fleet.SchemeGroupVersion.WithResource("bundledeployments")
	require.NoError(t, h.fleet.Tracker().Create(deployments, &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: registration.ClusterNamespace("ns", "local"), Name: "fleet-agent-local"}}, registration.ClusterNamespace("ns", "local")))
	out := h.Reconcile(t.Context(), c)
	assert.True(t, out.IsWait())
	assert.Contains(t, out.Message, own)
	assert.Contains(t, m.paths(), agentDeployment, "it would be deployed again")
	assert.Equal(t, time.Second, out.After, "BundleDeployments may not be watched")

	require.NoError(t, h.fleet.Tracker().Delete(deployments, registration.ClusterNamespace("ns", "local"), "fleet-agent-local"))
	out = h.untilSettled(t, c)
	assert.True(t, out.IsDone())
	assert.Equal(t, fleet.ReasonLocalAgentDisabled, out.Reason)
	assert.NotContains(t, m.paths(), agentDeployment)
	assert.NotContains(t, m.paths(), classPath)
	assert.Nil(t, c.Status.AgentDeployedGeneration)
	assert.Nil(t, c.Status.Import)
}

func TestRemoveLocalAgent_lookupFails(t *testing.T) {
	h, m, c := disabled(t)
	h.failFleet("get", "bundledeployments", errors.New("out"))
	out := h.Reconcile(t.Context(), c)
	assert.False(t, out.IsDone())
	require.ErrorContains(t, out.Err, "out")
	assert.Contains(t, m.paths(), agentDeployment)
}

func TestRemoveStaleAgents(t *testing.T) {
	h, m, c := importedCluster(t)
	c.Spec.AgentNamespace = "elsewhere"
	h.requireImported(t, c)
	require.Equal(t, []string{system}, c.Status.Import.StaleAgentNamespaces)
	assert.Contains(t, m.paths(), "/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent", "the old agent works until then")

	assert.True(t, h.Reconcile(t.Context(), c).IsDone())
	h.Wait()
	assert.Equal(t, []string{system}, c.Status.Import.StaleAgentNamespaces, "the new agent has not checked in")

	c.Status.Agent = fleet.AgentStatus{Namespace: "elsewhere", LastSeen: metav1.NewTime(start)}
	for range 2 {
		assert.True(t, h.Reconcile(t.Context(), c).IsDone())
		h.Wait()
	}
	assert.Empty(t, c.Status.Import.StaleAgentNamespaces)
	assert.NotContains(t, m.paths(), "/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent")
	assert.Contains(t, m.paths(), "/apis/apps/v1/namespaces/elsewhere/deployments/fleet-agent")
	assert.Contains(t, m.transcript(), "DELETE /api/v1/namespaces/"+system+"/secrets?labelSelector=name%3Dfleet-agent-c%2Cowner%3Dhelm",
		"the history of the agent's own release")
}

func TestRemoveStaleAgent_relabelsReleases(t *testing.T) {
	m := newFakeMember(t)
	revision := func(namespace, name, deployment string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
			"namespace": namespace, "name": name, "labels": map[string]any{release.DeploymentLabel: deployment},
		}}
	}
	m.revisions = []any{
		revision("app", "sh.helm.release.v1.app.v1", "app"), revision("old", "sh.helm.release.v1.fleet-agent-c.v1", "fleet-agent-c"),
		revision("shop", "sh.helm.release.v1.shop.v1", "shop"),
	}
	m.objects["/api/v1/namespaces/old/secrets/"+registration.HistoryKeySecret] = map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
		"annotations": map[string]any{registration.KeptAnnotation: "cart shop"},
	}}
	c := fresh()
	c.Status.Import = &fleet.ImportStatus{AgentNamespace: "new"}
	require.Nil(t, m.connect(t).removeStaleAgent(t.Context(), c, agentIn(c, "old", system), c.Status.Import))
	transcript := m.transcript()
	assert.Contains(t, transcript, "GET /api/v1/secrets?labelSelector=muster.fleet.cattle.io%2Fagent-namespace%3Dold")
	assert.Contains(t, transcript, "PATCH /api/v1/namespaces/app/secrets/sh.helm.release.v1.app.v1")
	assert.Contains(t, transcript, release.AgentLabel+": new")
	assert.NotContains(t, transcript, "PATCH /api/v1/namespaces/old/secrets", "the earlier agent's own release is deleted")
	assert.NotContains(t, transcript, "PATCH /api/v1/namespaces/shop/secrets", "the hub, restored from a backup, has no BundleDeployment for it")
}

func TestRemoveStaleAgent_manyRevisions(t *testing.T) {
	m := newFakeMember(t)
	for i := range 5 { // together they are larger than a response of a member may be
		m.revisions = append(m.revisions, map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"namespace": "apps", "name": fmt.Sprint("shop.v", i)},
			"data": map[string]any{"release": strings.Repeat("A", 1<<20)},
		})
	}
	require.Nil(t, m.connect(t).removeStaleAgent(t.Context(), installed(), agentID{namespace: "old"}, &fleet.ImportStatus{AgentNamespace: "new"}))
	for i := range 5 {
		assert.Contains(t, m.transcript(), fmt.Sprint("PATCH /api/v1/namespaces/apps/secrets/shop.v", i))
	}
}

// An import of another Cluster may have installed an agent in the namespace that this agent has left.
func TestRemoveStaleAgent_ofAnotherCluster(t *testing.T) {
	for _, row := range []struct {
		name         string
		installsLate bool // while the hub waits for the end of the earlier agent
	}{{"before the removal", false}, {"during the removal", true}} {
		t.Run(row.name, func(t *testing.T) {
			m := newFakeMember(t)
			m.revisions = []any{map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
				"namespace": "app", "name": "sh.helm.release.v1.app.v1", "labels": map[string]any{release.DeploymentLabel: "app"},
			}}}
			theirs := newFakeMember(t)
			require.Nil(t, planned(t, func(in *planInput) {
				in.cluster.Name, in.cluster.Spec.ClientID, in.cluster.Spec.AgentNamespace = "other", "theirs", "old"
				in.values.TokenName = registration.ImportTokenName("other")
			}).run(t, theirs))
			install := func() { maps.Copy(m.objects, theirs.objects) }
			if row.installsLate {
				m.put("/apis/apps/v1/namespaces/old/deployments/fleet-agent", map[string]any{"kind": "Deployment"})
				m.pods, m.ended = []any{agentPod}, install
			} else {
				install()
			}
			require.Nil(t, m.connect(t).removeStaleAgent(t.Context(), installed(), agentID{namespace: "old"}, &fleet.ImportStatus{AgentNamespace: "new"}))
			assert.Subset(t, m.paths(), theirs.paths(), "nothing of the other agent is removed")
			assert.Contains(t, m.transcript(), "PATCH /api/v1/namespaces/app/secrets/sh.helm.release.v1.app.v1", "the release follows its agent")
		})
	}
}

func TestRemoveStaleAgent_failures(t *testing.T) {
	c := installed()
	c.Status.Import.PullSecrets = []string{"pull"}
	m := newFakeMember(t)
	require.Nil(t, m.connect(t).removeStaleAgent(t.Context(), c, agentIn(c, "old", system), c.Status.Import))
	all := len(m.requests)
	require.Greater(t, all, len(agentmanifest.OwnedObjects("old")))
	for at := range all {
		broken := newFakeMember(t)
		broken.fault = failAt(at, "forbid")
		f := broken.connect(t).removeStaleAgent(t.Context(), c, agentIn(c, "old", system), c.Status.Import)
		require.NotNil(t, f, "request %d", at)
		assert.Equal(t, fleet.ReasonForbidden, f.reason)
		assert.Contains(t, f.message, "removing the ")
		assert.Len(t, broken.requests, at+1)
	}
}

func TestRecord_staleNamespaces(t *testing.T) {
	c := fresh()
	h, _ := importable(t, c)
	for _, namespace := range []string{"", "elsewhere", ""} {
		c.Spec.AgentNamespace = namespace
		h.requireImported(t, c)
	}
	assert.Equal(t, []string{"elsewhere"}, c.Status.Import.StaleAgentNamespaces)
	assert.Equal(t, system, c.Status.Import.AgentNamespace)
}

// The import into the later namespace leaves a PriorityClass that the earlier agent still names, or that has the marks of the earlier import.
func TestRemoveStaleAgent_priorityClass(t *testing.T) {
	for _, row := range []struct {
		name, earlier, later string // values of spec.agentNamespace
		scope                string // of the class
		required             bool
		agents               []any
		removed              bool
	}{
		{name: "of the earlier import", earlier: "old", later: "new", scope: "old", removed: true},
		{name: "of the later import", earlier: "old", later: "new", scope: "new", removed: true},
		{name: "of the earlier import with the default namespace", earlier: "", later: "new", scope: "", removed: true},
		{name: "required", earlier: "old", later: "new", scope: "new", required: true},
		{name: "of another agent", earlier: "old", later: "new", scope: "theirs"},
		{name: "of an agent in the default namespace", earlier: "old", later: "new", scope: ""},
		{name: "used by another agent", earlier: "old", later: "new", scope: "old", agents: []any{agentWithClass("theirs")}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := fresh()
			h, m := importable(t, c)
			marks, _, err := agentmanifest.ImportMarks(row.scope)
			require.NoError(t, err)
			c.Spec.AgentNamespace = row.earlier
			h.requireImported(t, c)
			c.Spec.AgentNamespace = row.later
			h.requireImported(t, c)
			if row.required {
				c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 5}}
				h.requireImported(t, c)
			}
			m.agents = row.agents
			m.put(classPath, map[string]any{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": map[string]any{
				"name": agentmanifest.PriorityClassName, "uid": "class", "labels": marks,
			}})
			c.Status.Agent = fleet.AgentStatus{Namespace: row.later, LastSeen: metav1.NewTime(start)}
			for range 2 {
				assert.True(t, h.Reconcile(t.Context(), c).IsDone())
				h.Wait()
			}
			require.Empty(t, c.Status.Import.StaleAgentNamespaces)
			assert.Equal(t, row.removed, !slices.Contains(m.paths(), classPath))
		})
	}
}

func TestRemoveStaleAgents_retry(t *testing.T) {
	h, m, c := importedCluster(t)
	c.Status.Import.StaleAgentNamespaces = []string{"old"}
	c.Status.Agent = fleet.AgentStatus{Namespace: system, LastSeen: metav1.NewTime(start)}
	m.fault = failAt(len(m.requests)+1, "forbid")
	h.Reconcile(t.Context(), c)
	h.Wait()
	out := h.Reconcile(t.Context(), c)
	assert.Equal(t, fleet.ReasonForbidden, out.Reason)
	assert.Equal(t, []string{"old"}, c.Status.Import.StaleAgentNamespaces)
	h.clock.Step(out.After)
	h.Reconcile(t.Context(), c)
	h.Wait()
	assert.True(t, h.Reconcile(t.Context(), c).IsDone())
	assert.Empty(t, c.Status.Import.StaleAgentNamespaces)
}
