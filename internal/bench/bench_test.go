package bench

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
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

func TestStormFigures(t *testing.T) {
	s := storm{
		count: 10, rate: 50, took: figures.Samples{time.Second, 2 * time.Second}, peak: 64 << 20,
		cost: cost{Counts: audit.Counts{Writes: 150, Reads: 5, Failed: 1}, hubCPU: 80 * time.Millisecond, apiServerCPU: 300 * time.Millisecond},
	}
	assert.Equal(t, map[string]float64{
		"storm/rate": 50, "storm/p99": 2, "storm/cpu": 8, "storm/writes": 15, "storm/reads": .5, "storm/failed": 1, "storm/memory": 64, "storm/apiserver-cpu": 30,
	}, values(s.figures("storm")))

	beats := cost{Counts: audit.Counts{Writes: 40, Reads: 10, Kinds: map[string]int{"create bundles": 10, "patch clusters/status": 30}}, hubCPU: 20 * time.Millisecond, apiServerCPU: 60 * time.Millisecond}
	assert.Equal(t, map[string]float64{
		"storm/writes-with-bundle": 16, "beat/writes": 4, "beat/reads": 1, "beat/failed": 0, "beat/cpu": 2, "beat/apiserver-cpu": 6,
	}, values(s.heartbeatFigures(beats)))

	f := floor{rate: 40, clientCPU: 2 * time.Millisecond, apiServerCPU: 10 * time.Millisecond}.
		mean(floor{rate: 60, clientCPU: 6 * time.Millisecond, apiServerCPU: 30 * time.Millisecond})
	assert.Equal(t, map[string]float64{
		"floor/token-request": 50, "floor/apiserver-cpu": 20,
		"storm/share-of-floor": 1, "storm/cpu-in-floors": 2, "storm/apiserver-cpu-in-floors": 1.5,
	}, values(f.figures(s)))
}

func TestFloorCounts(t *testing.T) {
	for storm, want := range map[int][2]int{1: {1, 1}, 3: {1, 1}, 1000: {250, 500}} {
		warmUp, measured := floorCounts(storm)
		assert.Equal(t, want, [2]int{warmUp, measured}, "a storm of %d", storm)
	}
}

func TestAwaitSilence(t *testing.T) {
	first, second := []audit.Request{{Verb: "create"}}, []audit.Request{{Verb: "get"}}
	first[0].ObjectRef.Resource, second[0].ObjectRef.Resource = "secrets", "clusters"
	synctest.Test(t, func(t *testing.T) {
		polls := 0
		all, err := awaitSilence(t.Context(), "the agent", func() ([]audit.Request, error) {
			polls++
			switch polls {
			case 1:
				return first, nil
			case 3:
				return second, nil
			default:
				return nil, nil
			}
		})
		require.NoError(t, err)
		assert.Equal(t, append(first, second...), all)
	})
	synctest.Test(t, func(t *testing.T) {
		polls := 0
		_, err := awaitSilence(t.Context(), "the agent", func() ([]audit.Request, error) {
			if polls++; polls%3 == 0 { // not in the last one
				return second, nil
			}
			return nil, nil
		})
		require.ErrorContains(t, err, "the agent is not quiet after 30m0s: get clusters ")
	})
	broken := errors.New("no log")
	_, err := awaitSilence(t.Context(), "the agent", func() ([]audit.Request, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = awaitSilence(ended, "the agent", func() ([]audit.Request, error) { return nil, nil })
	require.ErrorIs(t, err, context.Canceled)
}

func TestImportFigures(t *testing.T) {
	hub := cost{Counts: audit.Counts{Writes: 24, Reads: 8}, hubCPU: 40 * time.Millisecond, apiServerCPU: 80 * time.Millisecond}
	assert.Equal(t, map[string]float64{
		"imports/rate": 25, "imports/hub-requests": 16, "imports/member-requests": 12.5, "imports/cpu": 20, "imports/apiserver-cpu": 40,
	}, values(importFigures(2, 25, hub, audit.Counts{Writes: 20, Reads: 5})))
}

func TestRatios(t *testing.T) {
	all := []figures.Figure{
		{Row: "growth/100/cpu", Value: 8},
		{Row: "growth/1000/cpu", Value: 10},
		{Row: "growth/100/apiserver-cpu", Value: 40},
		{Row: "growth/1000/apiserver-cpu", Value: 60},
		{Row: "growth/100/heartbeat-apiserver-cpu", Value: 2},
		{Row: "growth/1000/heartbeat-apiserver-cpu", Value: 2},
		{Row: "growth/100/restart-reads", Value: 20},
		{Row: "growth/1000/restart-reads", Value: 23},
	}
	assert.Equal(t, map[string]float64{
		"growth/cpu-ratio": 1.25, "growth/apiserver-cpu-ratio": 1.5, "growth/heartbeat-apiserver-cpu-ratio": 1, "growth/more-restart-reads": 3,
	}, values(ratios(all, []int{100, 300, 1000})))
	assert.Empty(t, ratios(all, []int{100}), "one size only")
}

func TestHourFigures(t *testing.T) {
	c := cost{Counts: audit.Counts{Writes: 20, Reads: 3}, hubCPU: 400 * time.Millisecond, apiServerCPU: 2 * time.Second}
	assert.Equal(t, map[string]float64{"day/hour-writes": 2, "day/hour-reads": 3, "day/beat-cpu": 1, "day/beat-apiserver-cpu": 5, "day/hour-p99": 250},
		values(hourFigures(100, 10, 400, c, 250*time.Millisecond)))
	assert.InDelta(t, 20, values(hourFigures(5, 0, 5, c, 0))["day/hour-writes"], 0, "no agent was disconnected")

	taken, left := split(sim.Numbers(5, 7), 3)
	assert.Equal(t, []int{5, 8, 11}, taken)
	assert.Equal(t, []int{6, 7, 9, 10}, left)
}

func TestMinuteFigures(t *testing.T) {
	m := minuteLoad{
		planned: 10, sent: 500, failed: 2, took: 100 * time.Second,
		used:   processes{hub: 5 * time.Second, apiServer: 50 * time.Second, etcd: 10 * time.Second, controllerManager: 5 * time.Second},
		others: figures.Samples{time.Millisecond, 2 * time.Millisecond, 900 * time.Millisecond}, othersFailed: 1,
	}
	same := func(what string) string { return what }
	all := m.figures(same, same)
	assert.Equal(t, map[string]float64{
		"rate": 5, "failed": 2, "apiserver-cpus": .5, "cpus": .7, "p50": 2, "p99": 900, "others-failed": 1,
	}, values(all))
	rate, _ := figures.Find(all, "rate")
	assert.Equal(t, "heartbeats sent per second, of 10.0 planned", rate.Title, "the table shows that the bench did not keep the rate")
}

func TestCostDuration(t *testing.T) {
	began := time.Now()
	assert.Equal(t, time.Second, cost{Counts: audit.Counts{Last: began.Add(time.Second)}, began: began}.duration())
	assert.Zero(t, cost{began: began}.duration(), "no request")
}

func TestSumOf(t *testing.T) {
	const metrics = "# HELP size Size\n# TYPE size gauge\nsize{storage_cluster_id=\"etcd-0\"} 4.25e+07\nsize{storage_cluster_id=\"etcd-1\"} 1\nsize_other 5\nplain 2\n"
	for name, sum := range map[string]float64{"size": 42500001, "plain": 2} {
		found, err := sumOf(metrics, name)
		require.NoError(t, err)
		assert.InDelta(t, sum, found, 0, name)
	}
	_, err := sumOf(metrics, "absent")
	require.ErrorContains(t, err, "no metric absent")
	_, err = sumOf("size many\n", "size")
	require.Error(t, err)
}

func TestUsageOf(t *testing.T) {
	one, err := usageOf(os.Getpid())
	require.NoError(t, err)
	assert.Positive(t, one.peakMemory)
	two, err := usageOf(os.Getpid(), os.Getpid())
	require.NoError(t, err)
	assert.GreaterOrEqual(t, two.peakMemory, 2*one.peakMemory)
	assert.GreaterOrEqual(t, two.cpu, 2*one.cpu)
	_, err = usageOf(os.Getpid(), 1<<30)
	require.ErrorIs(t, err, os.ErrNotExist)
	none, err := usageOf()
	require.NoError(t, err)
	assert.Zero(t, none)
}

func TestOptionsValidate(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		problem string
	}{
		"a program":                  {Options{Hub: "hub", Sizes: Whole(1000)}, ""},
		"no hub":                     {Options{}, "no hub"},
		"an unknown part":            {Options{Hub: "hub", Sizes: Whole(1000), Parts: []string{"imports", "exports"}}, `no part "exports"; the parts are [registrations`},
		"numbers in the wrong order": {Options{Hub: "hub", Sizes: Sizes{Clusters: []int{10, 5}}}, "ascending order"},
		"too few clusters":           {Options{Hub: "hub", Sizes: Sizes{Idle: 50, Clusters: []int{40}}}, "at least 50"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.options.validate()
			if test.problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.problem)
		})
	}
	for agent, isHub := range map[string]bool{"fleetcontroller/v1": true, "hub-2/v1": true, "fleetagent/v1": false} {
		assert.Equal(t, isHub, Options{Hub: "/tmp/hub-2"}.hubRequests()(audit.Request{UserAgent: agent}), agent)
	}
	assert.NotContains(t, WholeParts(), "small")
}

// The kept records must stay comparable.
func TestSettings(t *testing.T) {
	assert.Equal(t, "1000 at once, 200 in flight; 50 one by one; 200 imports; growth to [100 300 1000]; idle 10s; hour 5m0s; spread 5m0s", Options{Sizes: Whole(1000)}.Settings())
	assert.NotEqual(t, Options{Sizes: Whole(1000)}.Settings(), Options{Sizes: Small()}.Settings())
	assert.Equal(t, []int{100, 300, 10000}, Whole(10000).Clusters)
	assert.Equal(t, []int{100, 200}, Whole(200).Clusters)
	assert.Equal(t, []int{100}, Whole(100).Clusters)
	rows, _, err := figures.Baseline("../../bench/results", Options{Sizes: Whole(1000)}.Settings())
	require.NoError(t, err)
	_, found := figures.Find(rows, "storm/writes-with-bundle")
	assert.True(t, found)
}
