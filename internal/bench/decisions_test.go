package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// values are figures by row.
func values(all []figures.Figure) map[string]float64 {
	byRow := map[string]float64{}
	for _, f := range all {
		byRow[f.Row] = f.Value
	}
	return byRow
}

func TestAStormInFigures(t *testing.T) {
	s := storm{
		count: 10, rate: 50, took: figures.Times{time.Second, 2 * time.Second}, peak: 64 << 20,
		cost: cost{Tally: audit.Tally{Writes: 150, Reads: 5, Failed: 1}, cpu: 80 * time.Millisecond},
	}
	assert.Equal(t, map[string]float64{
		"storm/rate": 50, "storm/p99": 2, "storm/cpu": 8, "storm/writes": 15, "storm/reads": .5, "storm/failed": 1, "storm/memory": 64,
	}, values(s.figures("storm")))

	beats := cost{Tally: audit.Tally{Writes: 40, Reads: 10, Kinds: map[string]int{"create bundles": 10, "patch clusters/status": 30}}, cpu: 20 * time.Millisecond}
	assert.Equal(t, map[string]float64{
		"storm/writes-with-bundle": 16, "beat/writes": 4, "beat/reads": 1, "beat/failed": 0, "beat/cpu": 2,
	}, values(s.withBundle(beats)))

	plain := floor{requests: 40, secrets: 20, cpu: 2}.and(floor{requests: 60, secrets: 30, cpu: 6})
	assert.Equal(t, map[string]float64{
		"floor/token-request": 50, "floor/token-secret": 25,
		"storm/share-of-floor": 1, "storm/share-of-secret-floor": 2, "storm/cpu-in-floors": 2,
	}, values(plain.figures(s)))
}

func TestImportsInFigures(t *testing.T) {
	hub := cost{Tally: audit.Tally{Writes: 24, Reads: 8}, cpu: 40 * time.Millisecond}
	assert.Equal(t, map[string]float64{
		"imports/rate": 25, "imports/hub-requests": 16, "imports/member-requests": 12.5, "imports/cpu": 20,
	}, values(importFigures(2, 25, hub, audit.Tally{Writes: 20, Reads: 5})))
}

func TestWhatDoesNotGrowIsTheSameAtBothEnds(t *testing.T) {
	all := []figures.Figure{
		{Row: "growth/100/cpu", Value: 8},
		{Row: "growth/1000/cpu", Value: 10},
		{Row: "growth/100/restart-reads", Value: 20},
		{Row: "growth/1000/restart-reads", Value: 23},
	}
	assert.Equal(t, map[string]float64{"growth/cpu-ratio": 1.25, "growth/more-restart-reads": 3}, values(spreads(all, []int{100, 300, 1000})))
	assert.Empty(t, spreads(all, []int{100}), "one size does not grow")
	assert.Equal(t, map[string]float64{"growth/cpu-ratio": 1.25}, values(spreads(all[:2], []int{100, 1000})), "nobody said how to restart it")
}

func TestAnHourInFigures(t *testing.T) {
	c := cost{Tally: audit.Tally{Writes: 20, Reads: 3}, cpu: 400 * time.Millisecond}
	assert.Equal(t, map[string]float64{"day/hour-writes": 2, "day/hour-reads": 3, "day/beat-cpu": 1, "day/hour-p99": 250},
		values(hourFigures(100, 10, 400, c, 250*time.Millisecond)))
	assert.InDelta(t, 20, values(hourFigures(5, 0, 5, c, 0))["day/hour-writes"], 0, "nobody was gone")
}

func TestOneInSoManyIsTakenOut(t *testing.T) {
	taken, left := split(sim.Numbers(5, 7), 3)
	assert.Equal(t, []int{5, 8, 11}, taken)
	assert.Equal(t, []int{6, 7, 9, 10}, left)
}

func TestProcessesInFigures(t *testing.T) {
	before := []time.Duration{time.Second, 2 * time.Second}
	spent := since(before, []time.Duration{2 * time.Second, 5 * time.Second})
	assert.Equal(t, []time.Duration{time.Second, 3 * time.Second}, spent)
	assert.Equal(t, 1, busiest(spent))
	s := storm{count: 400, rate: 60, peak: 200 << 20, cost: cost{Tally: audit.Tally{Writes: 6000}, cpu: 4 * time.Second}}
	assert.Equal(t, map[string]float64{
		"replicas/2/rate": 60, "replicas/2/cpu": 10, "replicas/2/busiest": .75, "replicas/2/writes": 15, "replicas/2/failed": 0, "replicas/2/memory": 200,
	}, values(poolFigures(2, s, spent)))
	assert.Zero(t, values(poolFigures(1, s, []time.Duration{0}))["replicas/1/busiest"], "processes that did nothing")
}

func TestTheTimeUntilTheLastRequest(t *testing.T) {
	began := time.Now()
	assert.Equal(t, time.Second, cost{Tally: audit.Tally{Last: began.Add(time.Second)}, began: began}.until())
	assert.Zero(t, cost{began: began}.until(), "nothing was sent")
}

func TestTheSizeOfTheDatabaseIsAMetric(t *testing.T) {
	size, err := parseStored("# HELP apiserver_storage_size_bytes Size\n# TYPE apiserver_storage_size_bytes gauge\n" +
		"apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"} 4.2500096e+07\nother 1\n")
	require.NoError(t, err)
	assert.Equal(t, int64(42500096), size)
	_, err = parseStored("other 1\n")
	require.ErrorContains(t, err, "does not tell")
	_, err = parseStored("apiserver_storage_size_bytes many\n")
	require.Error(t, err)
}

func TestEveryPartHasItsOwnName(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range allParts() {
		assert.False(t, seen[name], name)
		seen[name] = true
		_, found := partOf(name)
		assert.True(t, found)
	}
	for _, name := range WholeParts() {
		assert.True(t, seen[name])
	}
	assert.NotContains(t, WholeParts(), "small", "it is measured when it is asked for")
}
