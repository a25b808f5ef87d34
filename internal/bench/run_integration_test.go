package bench

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/binaries"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

var tiny = Sizes{
	Storm: 10, InFlight: 5, Idle: 2, Imports: 2, Clusters: []int{10}, Window: time.Second,
	Hour: 12 * time.Second, Spread: time.Second, Takeovers: 1, Flood: 20, Hostile: 8, Rounds: 1, Minute: 2 * time.Second,
}

func TestRun(t *testing.T) {
	controlplane.SkipShort(t)
	sample.Long(t)
	dir := t.TempDir()
	require.NoError(t, binaries.Build(t.Context(), dir, "fleetcontroller"))
	hub := filepath.Join(dir, "fleetcontroller")
	if sample.All() { // CI runs make bench-small
		t.Run("small: every row that has a budget", func(t *testing.T) { testSmall(t, hub) })
	}
	t.Run("floor: the plain client without a hub", testFloor)
	for _, part := range sample.Some(t, 1, []func(*testing.T, string){testDay, testFleet, testFlood, testTenant}) {
		part(t, hub)
	}
}

func testSmall(t *testing.T, hub string) {
	data, err := os.ReadFile("../../bench/budgets.yaml")
	require.NoError(t, err)
	limits, err := figures.ParseLimits(data)
	require.NoError(t, err)
	assert.NotEmpty(t, limits.Targets)

	measured, err := Run(t.Context(), Options{Hub: hub, Parts: []string{"small", "clusternet", "imports", "takeover"}, Sizes: tiny, Log: t.Output()})
	require.NoError(t, err)
	_, unmeasured := limits.Budgets.Check(measured)
	for _, row := range unmeasured {
		assert.Contains(t, row, "100", "rows differ only in the number of clusters")
	}
	all := values(measured)
	for _, row := range []string{
		"storm/writes", "storm/cpu", "storm/apiserver-cpu", "beat/writes", "beat/apiserver-cpu", "join/rate", "join/writes", "join/apiserver-cpu",
		"growth/10/memory", "growth/10/etcd", "growth/10/heartbeat-apiserver-cpu", "growth/10/restart-reads",
		"imports/hub-requests", "imports/member-requests", "takeover/kill", "takeover/stop",
	} {
		assert.Positive(t, all[row], row)
	}
	for _, row := range []string{"growth/10/restart-writes", "growth/10/heartbeat-requests", "takeover/idle"} {
		assert.Contains(t, all, row)
		assert.Zero(t, all[row], row)
	}
}

func testFloor(t *testing.T) {
	measured, err := measureFloor(t.Context(), Options{Sizes: tiny, Log: t.Output()})
	require.NoError(t, err)
	assert.Positive(t, measured.rate)
}

func testDay(t *testing.T, hub string) {
	measured, err := Run(t.Context(), Options{Hub: hub, Parts: []string{"day"}, Sizes: tiny, Log: t.Output()})
	require.NoError(t, err)
	all := values(measured)
	assert.GreaterOrEqual(t, all["day/hour-writes"], 2., "one Cluster was disconnected and connected again")
	for _, row := range []string{"growth/10/cpu", "growth/10/apiserver-cpu", "day/hour-p99", "day/outage-p99", "day/outage-back", "day/memory", "deletion/requests"} {
		assert.Positive(t, all[row], row)
	}
}

func testFlood(t *testing.T, hub string) {
	measured, err := Run(t.Context(), Options{Hub: hub, Parts: []string{"flood"}, Sizes: tiny, Log: t.Output()})
	require.NoError(t, err)
	all := values(measured)
	assert.InDelta(t, tiny.Flood, all["flood/clusters"], 0, "the limits of the hub are higher")
	assert.InDelta(t, tiny.Flood, all["flood/requests"], 0)
	assert.Zero(t, all["flood/reported"])
	assert.Positive(t, all["flood/cpu"])
}

func testFleet(t *testing.T, hub string) {
	for _, kind := range sample.Some(t, 1, []string{"lease", "status"}) {
		sizes := tiny
		sizes.Storm, sizes.Clusters = 5, []int{10, 20}
		measured, err := Run(t.Context(), Options{Hub: hub, Parts: []string{"fleet-" + kind}, Sizes: sizes, Log: t.Output()})
		require.NoError(t, err, "the hub would have made other objects than the copies")
		all := values(measured)
		assert.Zero(t, all["fleet/"+kind+"/20/restart/writes"])
		for _, row := range []string{
			"stored", "restart/cpu", "registration/requests", "heartbeat/etcd-bytes", "heartbeat/watch-bytes", "bundle/requests",
			"memory", "apiserver-memory", "controller-manager-memory", "etcd",
			"minute/rate", "minute/cpus", "minute/apiserver-cpus", "minute/p50", "minute/p99",
		} {
			assert.Positive(t, all["fleet/"+kind+"/20/"+row], "%s: %s", kind, row)
		}
		assert.LessOrEqual(t, all["fleet/"+kind+"/20/minute/rate"], 10., "20 heartbeats in 2 s")
		for _, row := range []string{"heartbeat/requests", "minute/failed", "minute/others-failed"} {
			assert.Contains(t, all, "fleet/"+kind+"/20/"+row)
			assert.Zero(t, all["fleet/"+kind+"/20/"+row], "%s: %s", kind, row)
		}
		if kind == "lease" {
			assert.InDelta(t, 1, all["fleet/lease/20/report/requests"], .5)
		} else {
			assert.NotContains(t, all, "fleet/status/20/report/requests")
		}
	}
}

func testTenant(t *testing.T, hub string) {
	measured, err := Run(t.Context(), Options{Hub: hub, Parts: []string{"tenant"}, Sizes: tiny, Log: t.Output()})
	require.NoError(t, err, "the hub has removed the Clusters of the hostile members")
	all := values(measured)
	for _, row := range []string{"alone-p50", "beside-p50", "ratio", "unreachable-p50", "hostile-p50", "hostile-ratio", "hostile-alone-ratio", "hostile-memory"} {
		assert.Positive(t, all["tenant/"+row], row)
	}
	assert.Contains(t, all, "tenant/memory")
}

func TestGuard(t *testing.T) {
	h := &hubProcess{}
	h.command.Path, h.command.Dir = "/bin/false", t.TempDir()
	h.command.Log = filepath.Join(h.command.Dir, "hub.log")
	require.NoError(t, h.start())
	ctx, done := h.untilExit(t.Context())
	defer done()
	require.Error(t, sim.Pause(ctx, time.Minute))
	require.ErrorContains(t, context.Cause(ctx), "the hub exited with code 1")
}
