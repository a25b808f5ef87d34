package bench

import (
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
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// program builds the hub.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, binaries.Build(t.Context(), dir, "fleetcontroller"))
	return filepath.Join(dir, "fleetcontroller")
}

func tiny() Sizes {
	return Sizes{
		Storm: 10, InFlight: 5, Idle: 2, Imports: 2, Clusters: []int{10}, Window: time.Second,
		Hour: 12 * time.Second, Spread: time.Second, Balance: time.Second, Replicas: []int{2},
	}
}

// The hub is built once for all of these.
func TestTheBenchMeasuresARealHub(t *testing.T) {
	hub := program(t)
	t.Run("the small run", func(t *testing.T) { theSmallRunMeasuresAllThatHasABudget(t, hub) })
	t.Run("a hub that runs", func(t *testing.T) { aHubThatRunsIsMeasuredByItsNameAlone(t, hub) })
	t.Run("the long story", func(t *testing.T) { theLongStoryInShort(t, hub) })
	t.Run("several processes", func(t *testing.T) { aProcessIsKilledAndNobodyIsLost(t, hub) })
}

// A row that has a budget and is not measured fails make bench-small; this one is earlier, and needs no quiet machine.
func theSmallRunMeasuresAllThatHasABudget(t *testing.T, hub string) {
	data, err := os.ReadFile("../../bench/budgets.yaml")
	require.NoError(t, err)
	limits, err := figures.ParseLimits(data)
	require.NoError(t, err)

	measured, err := Run(t.Context(), Options{Hub: hub, Parts: []string{"small", "imports"}, Sizes: tiny(), Log: t.Output()})
	require.NoError(t, err)
	_, unmeasured := limits.Budgets.Judge(measured)
	for _, row := range unmeasured {
		assert.Contains(t, row, "100", "only the number of clusters is another")
	}
	for _, row := range []string{"storm/writes", "storm/cpu", "beat/writes", "growth/10/memory", "growth/10/etcd", "imports/hub-requests", "imports/member-requests"} {
		f, found := figures.Find(measured, row)
		assert.True(t, found, row)
		assert.Positive(t, f.Value, row)
	}
	writes, _ := figures.Find(measured, "growth/10/restart-writes")
	assert.Zero(t, writes.Value)
	reads, _ := figures.Find(measured, "growth/10/restart-reads")
	assert.Positive(t, reads.Value, "the log is read after the restart")
}

func aHubThatRunsIsMeasuredByItsNameAlone(t *testing.T, hub string) {
	o := Options{Hub: hub, Sizes: tiny(), Log: t.Output()}.withDefaults()
	o.Binaries = os.Getenv("KUBEBUILDER_ASSETS")
	w, err := withHub(t.Context(), o, flavour{})
	require.NoError(t, err)
	defer w.close()

	named := Options{Sizes: tiny(), Log: t.Output(), Parts: []string{"small"}, Named: &Named{
		Kubeconfig: filepath.Join(w.dir, "hub.kubeconfig"), Pids: w.hub.pids(), AuditLog: filepath.Join(w.dir, "audit.log"),
	}}
	measured, err := Run(t.Context(), named)
	require.NoError(t, err)
	writes, found := figures.Find(measured, "storm/writes")
	assert.True(t, found)
	assert.Greater(t, writes.Value, 5.)
	_, found = figures.Find(measured, "growth/10/restart-reads")
	assert.False(t, found, "nobody said how it is restarted")
	require.NoError(t, w.served(t.Context()), "it is left running")
}

func theLongStoryInShort(t *testing.T, hub string) {
	measured, err := Run(t.Context(), Options{Hub: hub, Parts: []string{"day"}, Sizes: tiny(), Log: t.Output()})
	require.NoError(t, err)
	all := values(measured)
	assert.GreaterOrEqual(t, all["day/hour-writes"], 2., "the one that was silent is gone, and back")
	for _, row := range []string{"growth/10/cpu", "day/hour-p99", "day/outage-p99", "day/outage-back", "day/memory", "deletion/requests"} {
		assert.Positive(t, all[row], row)
	}
}

func aProcessIsKilledAndNobodyIsLost(t *testing.T, hub string) {
	measured, err := Run(t.Context(), Options{
		Hub: hub, Parts: []string{"replicas"}, Sizes: tiny(), Log: t.Output(),
		// No shorter: a process that cannot renew in time ends, as it must, and here nobody starts it again.
		HubArgs: []string{"--lease-duration", "20s", "--renew-deadline", "15s", "--retry-period", "1s"},
	})
	require.NoError(t, err)
	all := values(measured)
	assert.Positive(t, all["replicas/2/moved"])
	assert.GreaterOrEqual(t, all["replicas/2/busiest"], .5)
}

func TestAHubThatEndsIsNotWaitedFor(t *testing.T) {
	o := Options{Hub: "/bin/false", Sizes: tiny(), Log: t.Output()}.withDefaults()
	w := &world{Options: o, dir: t.TempDir()}
	began := time.Now()
	h := &own{}
	h.command.Path, h.command.Dir, h.command.Log = "/bin/false", w.dir, filepath.Join(w.dir, "hub.log")
	require.NoError(t, h.start())
	ctx, done := h.during(t.Context())
	defer done()
	require.Error(t, sim.Pause(ctx, time.Minute))
	assert.Less(t, time.Since(began), time.Minute)
}
