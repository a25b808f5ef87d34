package capacity

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/bench/figures"
)

func TestFit(t *testing.T) {
	for name, c := range map[string]struct {
		points []Point
		line   Trend
	}{
		"no point":                         {nil, Trend{}},
		"one point: constant":              {[]Point{{1000, 5}}, Trend{Base: 5}},
		"two points: through both":         {[]Point{{1000, 5}, {3000, 9}}, Trend{Base: 3, Each: 0.002}},
		"three points: least squares":      {[]Point{{0, 0}, {1, 2}, {2, 1}}, Trend{Base: 0.5, Each: 0.5}},
		"it falls: noise around the mean":  {[]Point{{1000, 9}, {3000, 5}}, Trend{Base: 7}},
		"the same size twice: their mean":  {[]Point{{1000, 9}, {1000, 5}}, Trend{Base: 7}},
		"it rises by less than the noise":  {[]Point{{1000, 18}, {10000, 20}}, Trend{Base: 19}},
		"it neither rises nor falls: mean": {[]Point{{1000, 5}, {3000, 5}}, Trend{Base: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			line := Fit(c.points)
			assert.InDelta(t, c.line.Base, line.Base, 1e-9)
			assert.InDelta(t, c.line.Each, line.Each, 1e-9)
		})
	}
}

func TestTrendReaches(t *testing.T) {
	assert.InDelta(t, 500, Trend{Base: 50, Each: 0.1}.Reaches(100), 1e-9)
	assert.Zero(t, Trend{Base: 200, Each: 1}.Reaches(100), "it is reached without a cluster")
	assert.True(t, math.IsInf(Trend{Base: 50}.Reaches(100), 1), "it does not grow")
}

func TestSeriesPredicted(t *testing.T) {
	_, known := Series{Points: []Point{{1000, 10}, {10000, 20}}}.Predicted()
	assert.False(t, known, "two points are always on a line")
	value, known := Series{Points: []Point{{1000, 10}, {2000, 20}, {3000, 99}}}.Predicted()
	assert.True(t, known)
	assert.InDelta(t, 30, value, 1e-9, "the largest point is not used")
}

// measured are figures that are exactly on lines: 100 MiB and 10 KiB per cluster, for example.
func measured(kind string) (all []figures.Figure) {
	for _, size := range []float64{10000, 1000, 30000} { // in any order
		for name, value := range map[string]float64{
			"memory": 100 + size/100, "apiserver-memory": 400 + size/2, "etcd": 6 + size/20,
			"heartbeat/cpu": 1, "heartbeat/apiserver-cpu": 3, "heartbeat/etcd-cpu": 1, "heartbeat/etcd-bytes": 1 << 20,
			"report/cpu": 3, "report/apiserver-cpu": 9, "report/etcd-cpu": 4,
			"registration/cpu": 10, "registration/apiserver-cpu": 70, "registration/etcd-cpu": 15, "registration/controller-manager-cpu": 5,
			"restart/cpu": 1000 + size,
		} {
			all = append(all, figures.Counted(fmt.Sprintf("fleet/%s/%.0f/%s", kind, size, name), "", value))
		}
	}
	return append(all, figures.Rate("fleet/"+kind+"/rate", "", 1), figures.Counted("fleet/other/1000/memory", "", 1), figures.Counted("growth/1000/memory", "", 1))
}

func TestFleet(t *testing.T) {
	f := CostModelOf(measured("lease"), "lease")
	assert.Equal(t, []int{1000, 10000, 30000}, f.Sizes())
	assert.Equal(t, Point{30000, 400}, f.Costs["memory"].Largest())
	predicted, _ := f.Costs["memory"].Predicted()
	assert.InDelta(t, 400, predicted, 1e-6)
	assert.InDelta(t, 1100, f.at("memory", 100000), 1e-6)

	hub, apiServer := f.HeartbeatCores(90000, 60)
	assert.InDelta(t, 1.5+0.2, hub, 1e-6, "1,500 heartbeats of 1 ms, and 100 writes of lastSeen of 3-1 ms, per second")
	assert.InDelta(t, 6+0.9, apiServer, 1e-6)
	assert.InDelta(t, 20, f.RegistrationsPerSecond(90000, 2), 1e-6, "100 ms of CPU for each")
	assert.InDelta(t, 506+10*10000, f.EtcdMiB(10000, 60), 1e-3, "ten heartbeats of 1 MiB for each cluster")

	status := CostModelOf(measured("status"), "status")
	delete(status.Costs, "report/cpu") // agents that write the status of their Cluster
	hub, _ = status.HeartbeatCores(90000, 60)
	assert.InDelta(t, 1.5, hub, 1e-6)
}

func TestFleetEnds(t *testing.T) {
	f := CostModelOf(measured("lease"), "lease")
	delete(f.Costs, "heartbeat/etcd-bytes")
	limits := Bounds{EtcdMiB: 506, HubMiB: 1100, APIServerMiB: 10400, APIServerCores: 4.6, Interval: 60}
	ends := f.Ends(limits)
	require.Len(t, ends, 4)
	var text strings.Builder
	require.NoError(t, f.WriteEnds(&text, limits))
	assert.Equal(t, `| limit | reached with clusters |
|---|---|
| etcd: 0.494140625 GiB | 10,000 |
| memory of the API server: 10.15625 GiB | 20,000 |
| 4.6 CPUs of API server and etcd for a heartbeat every 60 s | 60,000 |
| memory of the hub: 1.07421875 GiB | 100,000 |
`, text.String())

	delete(f.Costs, "memory")
	last := f.Ends(limits)[3]
	assert.Contains(t, last.What, "memory of the hub")
	assert.True(t, math.IsInf(last.Clusters, 1))
}

func TestWriteCosts(t *testing.T) {
	var text strings.Builder
	require.NoError(t, CostModelOf(measured("lease"), "lease").WriteCosts(&text, 100000))
	lines := strings.Split(text.String(), "\n")
	assert.Equal(t, "| one unit of work | 1,000 | 10,000 | 30,000 | 30,000, predicted (error) | 100,000, predicted |", lines[0])
	assert.Contains(t, lines, "| memory of the hub, peak | 110 MiB | 200 MiB | 400 MiB | 400 MiB (+0 %) | 1,100 MiB |")
	assert.Contains(t, lines, "| heartbeat: CPU of API server and etcd | 4 ms | 4 ms | 4 ms | 4 ms (+0 %) | 4 ms |")
	assert.Contains(t, lines, "| start of the hub: CPU of the hub | 2 s | 11 s | 31 s | 31 s (+0 %) | 101 s |")
	assert.NotContains(t, text.String(), "Bundle", "it was not measured")

	partial := append(measured("lease"), figures.Counted("fleet/lease/1000/bundle/requests", "", 4))
	text.Reset()
	require.NoError(t, CostModelOf(partial, "lease").WriteCosts(&text, 100000))
	assert.NotContains(t, text.String(), "Bundle", "it was not measured at every size")
}

func TestWriteNeeds(t *testing.T) {
	var text strings.Builder
	require.NoError(t, CostModelOf(measured("lease"), "lease").WriteNeeds(&text, []float64{60}, 9000, 90000))
	lines := strings.Split(text.String(), "\n")
	assert.Equal(t, "| needed for | 9,000 clusters | 90,000 clusters |", lines[0])
	assert.Contains(t, lines, "| CPUs of API server and etcd, a heartbeat every 60 s | 0.69 | 6.9 |")
	assert.Contains(t, lines, "| registrations per second that 8 CPUs can process | 80 | 80 |")
	assert.Contains(t, lines, "| all clusters register at that rate | 1.9 min | 19 min |")
}

func TestNumber(t *testing.T) {
	for value, text := range map[float64]string{0: "0", 0.001: "0", 0.126: "0.13", 1.26: "1.3", 12.6: "13", 126.6: "127", 1234567: "1,234,567", 3: "3"} {
		assert.Equal(t, text, number(value))
	}
	for value, text := range map[float64]string{123456: "120,000", 98765: "99,000", 7: "7", 45: "45"} {
		assert.Equal(t, text, rounded(value))
	}
}
