package capacity

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// quantity is a row of the table of costs.
type quantity struct {
	name  string
	costs []string // are added up
	unit  string
	scale float64 // the figure is divided by it
}

const (
	perKilobyte = 1000 // bytes
	perSecond   = 1000 // milliseconds
	unscaled    = 1
)

var quantities = []quantity{
	{"memory of the hub, peak", []string{"memory"}, "MiB", unscaled},
	{"memory of the API server, peak", []string{"apiserver-memory"}, "MiB", unscaled},
	{"memory of the controller manager, peak", []string{"controller-manager-memory"}, "MiB", unscaled},
	{"size of etcd", []string{"etcd"}, "MiB", unscaled},
	{"heartbeat: CPU of the hub", []string{"heartbeat/cpu"}, "ms", unscaled},
	{"heartbeat: CPU of API server and etcd", []string{"heartbeat/apiserver-cpu", "heartbeat/etcd-cpu"}, "ms", unscaled},
	{"heartbeat: requests of the hub", []string{"heartbeat/requests"}, "", unscaled},
	{"heartbeat: written to etcd", []string{"heartbeat/etcd-bytes"}, "kB", perKilobyte},
	{"heartbeat: sent to all watches", []string{"heartbeat/watch-bytes"}, "kB", perKilobyte},
	{"changed report: CPU of the hub", []string{"report/cpu"}, "ms", unscaled},
	{"changed report: CPU of API server and etcd", []string{"report/apiserver-cpu", "report/etcd-cpu"}, "ms", unscaled},
	{"registration: CPU of the hub", []string{"registration/cpu"}, "ms", unscaled},
	{"registration: CPU of API server and etcd", []string{"registration/apiserver-cpu", "registration/etcd-cpu"}, "ms", unscaled},
	{"registration: CPU of the controller manager", []string{"registration/controller-manager-cpu"}, "ms", unscaled},
	{"registration: requests of the hub", []string{"registration/requests"}, "", unscaled},
	{"registration: written to etcd", []string{"registration/etcd-bytes"}, "kB", perKilobyte},
	{"Bundle changed for one cluster: CPU of the hub", []string{"bundle/cpu"}, "ms", unscaled},
	{"Bundle changed for one cluster: CPU of API server and etcd", []string{"bundle/apiserver-cpu", "bundle/etcd-cpu"}, "ms", unscaled},
	{"Bundle changed for one cluster: requests of the hub", []string{"bundle/requests"}, "", unscaled},
	{"start of the hub: CPU of the hub", []string{"restart/cpu"}, "s", perSecond},
	{"start of the hub: CPU of the API server", []string{"restart/apiserver-cpu"}, "s", perSecond},
	{"start of the hub: writes", []string{"restart/writes"}, "", unscaled},
}

// sum adds up the costs of a quantity. It is not known if one of them was not measured at every size.
func (f CostModel) sum(q quantity) (sum Series, known bool) {
	for n, name := range q.costs {
		c, known := f.Costs[name]
		if !known || len(c.Points) != len(f.Sizes()) {
			return Series{}, false
		}
		for i, p := range c.Points {
			if n == 0 {
				sum.Points = append(sum.Points, Point{Clusters: p.Clusters})
			}
			sum.Points[i].Value += p.Value / q.scale
		}
	}
	sum.Trend = Fit(sum.Points)
	return sum, true
}

// WriteCosts writes the measured costs, the prediction of the smaller sizes for the largest size, and the prediction of all sizes for a number
// of clusters.
func (f CostModel) WriteCosts(out io.Writer, clusters int) error {
	header := []string{"one unit of work"}
	for _, size := range f.Sizes() {
		header = append(header, grouped(float64(size)))
	}
	header = append(header, header[len(header)-1]+", predicted (error)", grouped(float64(clusters))+", predicted")
	rows := [][]string{header}
	for _, q := range quantities {
		c, known := f.sum(q)
		if !known {
			continue
		}
		row := []string{q.name}
		for _, p := range c.Points {
			row = append(row, withUnit(p.Value, q.unit))
		}
		check := ""
		if predicted, known := c.Predicted(); known {
			check = withUnit(predicted, q.unit)
			if actual := c.Largest().Value; actual != 0 {
				check += fmt.Sprintf(" (%+.0f %%)", math.Round(100*(predicted/actual-1))+0) // +0 has no sign
			}
		}
		rows = append(rows, append(row, check, withUnit(c.Trend.At(float64(clusters)), q.unit)))
	}
	return writeTable(out, rows)
}

// WriteNeeds writes what fleets of several sizes need, by the lines through all measurements.
func (f CostModel) WriteNeeds(out io.Writer, intervals []float64, sizes ...int) error {
	const cpus = 8
	header := []string{"needed for"}
	for _, size := range sizes {
		header = append(header, grouped(float64(size))+" clusters")
	}
	rows := [][]string{header}
	add := func(name string, need func(clusters float64) string) {
		row := []string{name}
		for _, size := range sizes {
			row = append(row, need(float64(size)))
		}
		rows = append(rows, row)
	}
	add("memory of the hub", func(n float64) string { return withUnit(f.at("memory", n)/(1<<10), "GiB") })
	add("memory of the API server", func(n float64) string { return withUnit(f.at("apiserver-memory", n)/(1<<10), "GiB") })
	for _, interval := range intervals {
		every := fmt.Sprintf("a heartbeat every %g s", interval)
		add("etcd, "+every, func(n float64) string { return withUnit(f.EtcdMiB(n, interval)/(1<<10), "GiB") })
		add("CPUs of API server and etcd, "+every, func(n float64) string {
			_, apiServer := f.HeartbeatCores(n, interval)
			return number(apiServer)
		})
		add("CPUs of the hub, "+every, func(n float64) string {
			hub, _ := f.HeartbeatCores(n, interval)
			return number(hub)
		})
	}
	add(fmt.Sprintf("registrations per second that %d CPUs can process", cpus), func(n float64) string { return number(f.RegistrationsPerSecond(n, cpus)) })
	add("all clusters register at that rate", func(n float64) string { return withUnit(n/f.RegistrationsPerSecond(n, cpus)/60, "min") })
	add("CPU of the hub for a start", func(n float64) string { return withUnit(f.at("restart/cpu", n)/perSecond, "s") })
	return writeTable(out, rows)
}

// WriteEnds writes where each limit ends the fleet, the first one first.
func (f CostModel) WriteEnds(out io.Writer, l Bounds) error {
	rows := [][]string{{"limit", "reached with clusters"}}
	for _, end := range f.Ends(l) {
		reached := "never"
		if !math.IsInf(end.Clusters, 1) {
			reached = rounded(end.Clusters)
		}
		rows = append(rows, []string{end.What, reached})
	}
	return writeTable(out, rows)
}

// writeTable writes rows in Markdown. The first one is the header.
func writeTable(out io.Writer, rows [][]string) error {
	var text strings.Builder
	for n, row := range rows {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
		if n == 0 {
			text.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func withUnit(value float64, unit string) string {
	return strings.TrimSpace(number(value) + " " + unit)
}

// number has two or three significant digits.
func number(value float64) string {
	switch size := math.Abs(value); {
	case size >= 100:
		return grouped(value)
	case size >= 10 || size < 0.005 || value == math.Trunc(value):
		return strconv.FormatFloat(value, 'f', 0, 64)
	case size >= 1:
		return strconv.FormatFloat(value, 'f', 1, 64)
	default:
		return strconv.FormatFloat(value, 'f', 2, 64)
	}
}

// rounded has two significant digits: no prediction is more precise.
func rounded(value float64) string {
	magnitude := math.Pow(10, max(0, math.Floor(math.Log10(value))-1))
	return grouped(math.Round(value/magnitude) * magnitude)
}

// grouped is a whole number with commas between groups of three digits.
func grouped(value float64) string {
	const group = 3
	text := strconv.FormatFloat(value, 'f', 0, 64)
	for at := len(text) - group; at > 0; at -= group {
		text = text[:at] + "," + text[at:]
	}
	return text
}
