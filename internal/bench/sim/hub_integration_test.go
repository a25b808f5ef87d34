package sim

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// connected is the API of a hub's cluster, with a workspace of this test.
func connected(t *testing.T, hub *testenv.Cluster) *API {
	t.Helper()
	api, err := Connect(t.Context(), hub.RESTConfig(), testenv.SystemNamespace, hub.Namespace(t))
	require.NoError(t, err)
	return api
}

func TestAgents(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	hub.Hub(t)
	api := connected(t, hub)
	agents, err := NewAgents(t.Context(), api, "sim")
	require.NoError(t, err)
	for _, count := range []int{2, 1} {
		took, err := agents.Register(t.Context(), count, count)
		require.NoError(t, err)
		require.Len(t, took, count)
		assert.Positive(t, took.Quantile(0))
	}
	require.Len(t, agents.Registered, 3)

	seen := map[string]bool{}
	for n, reconnect := range []bool{false, true} {
		failed, err := agents.Beat(t.Context(), []int{n}, Beats{Checkin: time.Hour, Reconnect: reconnect})
		require.NoError(t, err)
		assert.LessOrEqual(t, failed, 2, "the rights may take effect a moment after the credential")
	}
	for n, agent := range agents.Registered {
		assert.False(t, seen[agent.Cluster], "each has a Cluster of its own")
		seen[agent.Cluster] = true
		cluster, err := api.Fleet.Clusters(api.Workspace).Get(t.Context(), agent.Cluster, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, n == 2, cluster.Status.Agent.LastSeen.IsZero())
	}

	took, err := agents.Join(t.Context(), 2, 2)
	require.NoError(t, err)
	require.Len(t, took, 2)
	joined := agents.Registered[4].Cluster
	testenv.Eventually(t, func() (bool, string) {
		cluster, err := api.Fleet.Clusters(api.Workspace).Get(t.Context(), joined, metav1.GetOptions{})
		require.NoError(t, err)
		return cluster.Status.Display.ReadyBundles == "1/1", cluster.Status.Display.ReadyBundles
	})
	hub.DropClusters(t, api.Workspace)
}

func TestAgentsWithLeases(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	hub.Hub(t)
	api := connected(t, hub)
	agents, err := NewAgents(t.Context(), api, "leases")
	require.NoError(t, err)
	agents.Leases = true
	_, err = agents.Register(t.Context(), 1, 1)
	require.NoError(t, err)
	_, err = agents.Beat(t.Context(), []int{0}, Beats{Checkin: time.Hour, Report: "v1"})
	require.NoError(t, err)
	agent := agents.Registered[0]
	testenv.Eventually(t, func() (bool, string) {
		cluster, err := api.Fleet.Clusters(api.Workspace).Get(t.Context(), agent.Cluster, metav1.GetOptions{})
		require.NoError(t, err)
		return cluster.Status.Agent.Version == "v1" && cluster.Status.Agent.Registration == agent.Request, cluster.Status.Agent.Version
	})

	agents.Registered[0].token = "" // as that of an agent that did not register here
	require.NoError(t, agents.Authenticate(t.Context(), []int{0}, 1))
	failed, err := agents.Beat(t.Context(), []int{0}, Beats{Checkin: time.Hour})
	require.NoError(t, err)
	assert.Zero(t, failed)
	hub.DropClusters(t, api.Workspace)
}

func TestPlainClient(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	api := connected(t, hub)
	for name, secrets := range map[string]bool{"requests": false, "secrets": true} {
		require.NoError(t, PlainClient{API: api, Run: name, TokenSecrets: secrets}.Register(t.Context(), 2, 2))
		request, err := api.Fleet.ClusterRegistrations(api.Workspace).Get(t.Context(), name+"-1", metav1.GetOptions{})
		require.NoError(t, err)
		assert.True(t, request.Status.Granted)
		answer, err := api.Core.CoreV1().Secrets(api.SystemNamespace).Get(t.Context(), name+"-1", metav1.GetOptions{})
		require.NoError(t, err)
		assert.NotEmpty(t, answer.Data["token"])
	}
	hub.DropClusters(t, api.Workspace)
}

func TestImports(t *testing.T) {
	hub, member := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	hub.Hub(t)
	api := connected(t, hub)
	imports, err := NewImports(t.Context(), api)
	require.NoError(t, err)
	took, err := imports.Import(t.Context(), "sim-import", 2, member.Kubeconfig())
	require.NoError(t, err)
	require.Len(t, took, 2)
	cluster, err := api.Fleet.Clusters(api.Workspace).Get(t.Context(), "sim-import-1", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Contains(t, testenv.Condition(cluster.Status.Conditions, fleet.ConditionImported), "True Imported")
	hub.DropClusters(t, api.Workspace)
}
