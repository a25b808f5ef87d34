package sim

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// connected is the API of a hub's cluster, with a workspace of this test.
func connected(t *testing.T, hub *testenv.Cluster) *API {
	t.Helper()
	api, err := Connect(t.Context(), hub.RESTConfig(), testenv.SystemNamespace, hub.Namespace(t))
	require.NoError(t, err)
	return api
}

// TestAgents tests methods that scripts/bench-small does not use.
func TestAgents(t *testing.T) {
	sample.Long(t)
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
		cluster := testenv.RequireThere(t, api.Fleet.Clusters(api.Workspace).Get, agent.Cluster)
		return cluster.Status.Agent.Version == "v1" && cluster.Status.Agent.Registration == agent.Request, cluster.Status.Agent.Version
	})

	agents.Registered[0].token = "" // like an agent that did not register here
	require.NoError(t, agents.Authenticate(t.Context(), []int{0}, 1))
	failed, err := agents.Beat(t.Context(), []int{0}, Beats{Checkin: time.Hour})
	require.NoError(t, err)
	assert.Zero(t, failed)

	sent, failed, err := agents.Steady(t.Context(), []int{0}, 16, Beats{Checkin: time.Hour, Over: 800 * time.Millisecond, Limit: 4, Report: "v2"})
	require.NoError(t, err)
	assert.Equal(t, 16, sent)
	assert.Zero(t, failed)
	testenv.Eventually(t, func() (bool, string) {
		cluster := testenv.RequireThere(t, api.Fleet.Clusters(api.Workspace).Get, agent.Cluster)
		return cluster.Status.Agent.Version == "v2-15", cluster.Status.Agent.Version
	})

	plain, err := NewAgents(t.Context(), api, "plain")
	require.NoError(t, err)
	_, err = plain.Register(t.Context(), 1, 1)
	require.NoError(t, err)
	_, err = plain.Beat(t.Context(), []int{0}, Beats{Checkin: time.Hour, Reconnect: true})
	require.NoError(t, err)
	cluster := testenv.RequireThere(t, api.Fleet.Clusters(api.Workspace).Get, plain.Registered[0].Cluster)
	assert.False(t, cluster.Status.Agent.LastSeen.IsZero())
	hub.DropClusters(t, api.Workspace)
}

func TestPlainClient(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	api := connected(t, hub)
	require.NoError(t, PlainClient{API: api, Run: "plain"}.Register(t.Context(), 2, 2))
	request := testenv.RequireThere(t, api.Fleet.ClusterRegistrations(api.Workspace).Get, "plain-1")
	assert.True(t, request.Status.Granted)
	answer := testenv.RequireThere(t, api.Core.CoreV1().Secrets(api.SystemNamespace).Get, "plain-1")
	assert.NotEmpty(t, answer.Data["token"])
	hub.DropClusters(t, api.Workspace)
}
