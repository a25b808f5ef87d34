// Package capacity is the model of a fleet: it fits the measured cost of each kind of work to a line over the number of clusters, checks
// the line against the largest measurement, and predicts the costs of a larger fleet and the limit that it reaches first.
package capacity

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-fleet/muster/internal/bench/figures"
)

// Point is one figure at one number of clusters.
type Point struct{ Clusters, Value float64 }

// Trend is a cost that grows with the number of clusters: Base, and Each for each cluster.
type Trend struct{ Base, Each float64 }

// At is the cost with a number of clusters.
func (l Trend) At(clusters float64) float64 { return l.Base + l.Each*clusters }

// Reaches is the number of clusters at which the cost has a value; infinite if it never has.
func (l Trend) Reaches(value float64) float64 {
	if l.Each <= 0 {
		return math.Inf(1)
	}
	return max(0, (value-l.Base)/l.Each)
}

// noise is the share of its mean by which a cost that does not depend on the number of clusters may differ from one size to the next.
const noise = 0.25

// Fit returns the line with the least squares through points in ascending order. It returns the mean if the line rises by less than noise
// over all points, or falls, because no cost falls when clusters are added.
func Fit(points []Point) Trend {
	var n, sumX, sumY float64
	for _, p := range points {
		n, sumX, sumY = n+1, sumX+p.Clusters, sumY+p.Value
	}
	if n == 0 {
		return Trend{}
	}
	meanX, meanY := sumX/n, sumY/n
	var covariance, variance float64
	for _, p := range points {
		covariance += (p.Clusters - meanX) * (p.Value - meanY)
		variance += (p.Clusters - meanX) * (p.Clusters - meanX)
	}
	if variance == 0 || covariance <= 0 {
		return Trend{Base: meanY}
	}
	each := covariance / variance
	first, last := points[0].Clusters, points[len(points)-1].Clusters
	if each*math.Abs(last-first) < noise*math.Abs(meanY) {
		return Trend{Base: meanY}
	}
	return Trend{Base: meanY - each*meanX, Each: each}
}

// Series is a figure that was measured at several numbers of clusters.
type Series struct {
	// Points are in ascending order.
	Points []Point
	// Trend fits all of them.
	Trend Trend
}

// Largest is the last point; the zero value if there is none.
func (c Series) Largest() Point {
	if len(c.Points) == 0 {
		return Point{}
	}
	return c.Points[len(c.Points)-1]
}

// Predicted is the value at the largest number of clusters that follows from the smaller ones. It is not known with fewer than two of them.
func (c Series) Predicted() (value float64, known bool) {
	const needed = 3
	if len(c.Points) < needed {
		return 0, false
	}
	return Fit(c.Points[:len(c.Points)-1]).At(c.Largest().Clusters), true
}

// CostModel has the costs of a hub with one kind of agents, by the last segments of the rows, such as heartbeat/cpu.
type CostModel struct {
	Costs map[string]Series
}

// CostModelOf reads the rows fleet/KIND/NUMBER/COST of one kind: lease or status, where the agents send their heartbeats.
func CostModelOf(all []figures.Figure, kind string) CostModel {
	f := CostModel{Costs: map[string]Series{}}
	for _, figure := range all {
		rest, isOfKind := strings.CutPrefix(figure.Row, "fleet/"+kind+"/")
		number, name, isCost := strings.Cut(rest, "/")
		clusters, err := strconv.Atoi(number)
		if !isOfKind || !isCost || err != nil {
			continue
		}
		c := f.Costs[name]
		c.Points = append(c.Points, Point{Clusters: float64(clusters), Value: figure.Value})
		f.Costs[name] = c
	}
	for name, c := range f.Costs {
		slices.SortFunc(c.Points, func(a, b Point) int { return cmp.Compare(a.Clusters, b.Clusters) })
		c.Trend = Fit(c.Points)
		f.Costs[name] = c
	}
	return f
}

// Sizes are the numbers of clusters that were measured.
func (f CostModel) Sizes() (sizes []int) {
	for _, p := range f.Costs["memory"].Points {
		sizes = append(sizes, int(p.Clusters))
	}
	return sizes
}

// at is a cost with a number of clusters.
func (f CostModel) at(name string, clusters float64) float64 { return f.Costs[name].Trend.At(clusters) }

// cpu is the CPU time of some processes for one unit of work, in milliseconds.
func (f CostModel) cpu(work string, clusters float64, processes ...string) (sum float64) {
	for _, p := range processes {
		sum += f.at(work+"/"+p, clusters)
	}
	return sum
}

// The processes that use CPU for the work of a fleet.
const (
	hubCPU               = "cpu"
	apiServerCPU         = "apiserver-cpu"
	etcdCPU              = "etcd-cpu"
	controllerManagerCPU = "controller-manager-cpu"
)

// lastSeenInterval is the default time, in seconds, after which the hub writes the time of the last heartbeat of a Lease to the Cluster. That
// costs as much as a report that has changed, less the heartbeat.
const lastSeenInterval = 900

// HeartbeatCores is the number of CPUs that the heartbeats of a fleet keep busy, of the hub and of the API server with etcd.
func (f CostModel) HeartbeatCores(clusters, interval float64) (hub, apiServer float64) {
	cores := func(processes ...string) float64 {
		const millisecond = 1e-3
		busy := clusters / interval * f.cpu("heartbeat", clusters, processes...)
		if _, hasReports := f.Costs["report/cpu"]; hasReports {
			busy += clusters / lastSeenInterval * max(0, f.cpu("report", clusters, processes...)-f.cpu("heartbeat", clusters, processes...))
		}
		return busy * millisecond
	}
	return cores(hubCPU), cores(apiServerCPU, etcdCPU)
}

// RegistrationsPerSecond is how many registrations a number of CPUs can process if all programs of the hub's cluster share them.
func (f CostModel) RegistrationsPerSecond(clusters, cpus float64) float64 {
	const perSecond = 1000 // milliseconds of a CPU
	return cpus * perSecond / f.cpu("registration", clusters, hubCPU, apiServerCPU, etcdCPU, controllerManagerCPU)
}

// history is how long etcd keeps old versions, in seconds: every five minutes, the API server compacts versions that are older than five minutes.
const history = 600

// EtcdMiB is the size of etcd, with the old versions of heartbeats.
func (f CostModel) EtcdMiB(clusters, interval float64) float64 {
	return f.at("etcd", clusters) + clusters/interval*history*f.at("heartbeat/etcd-bytes", clusters)/(1<<20)
}

// Bounds are the resources of a hub's cluster.
type Bounds struct {
	EtcdMiB, HubMiB, APIServerMiB float64
	// APIServerCores are the CPUs of API server and etcd that heartbeats may use, at Interval seconds.
	APIServerCores, Interval float64
}

// End is one of the limits and where it ends the fleet.
type End struct {
	What string
	// Clusters is the number that reaches the limit; infinite if none does.
	Clusters float64
}

// Ends returns where each limit ends the fleet, the first one first.
func (f CostModel) Ends(l Bounds) []End {
	cores := func(clusters float64) float64 {
		_, apiServer := f.HeartbeatCores(clusters, l.Interval)
		return apiServer
	}
	etcd := func(clusters float64) float64 { return f.EtcdMiB(clusters, l.Interval) }
	all := []End{
		{fmt.Sprintf("etcd: %s", gib(l.EtcdMiB)), reaches(etcd, l.EtcdMiB)},
		{fmt.Sprintf("memory of the hub: %s", gib(l.HubMiB)), f.Costs["memory"].Trend.Reaches(l.HubMiB)},
		{fmt.Sprintf("memory of the API server: %s", gib(l.APIServerMiB)), f.Costs["apiserver-memory"].Trend.Reaches(l.APIServerMiB)},
		{fmt.Sprintf("%g CPUs of API server and etcd for a heartbeat every %g s", l.APIServerCores, l.Interval), reaches(cores, l.APIServerCores)},
	}
	slices.SortStableFunc(all, func(a, b End) int { return cmp.Compare(a.Clusters, b.Clusters) })
	return all
}

// reaches is the number of clusters at which a cost that grows has a value, by bisection; infinite above a hundred million.
func reaches(cost func(clusters float64) float64, value float64) float64 {
	low, high := 0., 1e8
	if cost(high) < value {
		return math.Inf(1)
	}
	for high-low > 1 {
		if middle := (low + high) / 2; cost(middle) < value {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

func gib(mib float64) string { return fmt.Sprintf("%g GiB", mib/(1<<10)) }
