package figures

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Chart is how something grows, for the program that draws it: hack/curves.
type Chart struct {
	Title string      `json:"title"`
	X     string      `json:"x"`
	Y     string      `json:"y"`
	Lines []ChartLine `json:"lines"`
}

// ChartLine is one line of a chart, from left to right.
type ChartLine struct {
	Name   string       `json:"name,omitempty"`
	Points []ChartPoint `json:"points"`
}

// ChartPoint is one figure at one number of clusters.
type ChartPoint struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// Charts are the curves of what is measured at several numbers of clusters, as far as a run has them.
func Charts(all []Figure) (charts []Chart) {
	for _, c := range []struct{ what, title, unit string }{
		{"memory", "Memory of the hub, at most", "MiB"},
		{"cpu", "CPU of the hub for one more registration", "ms"},
		{"requests", "Requests of the hub for one more registration", "requests"},
		{"restart-reads", "Reads of the hub after a restart", "requests"},
		{"etcd", "Size of etcd", "MiB"},
		{"idle", "Requests of an idle hub", "requests"},
	} {
		const line = 2 // points
		if points := pointsOf(all, c.what); len(points) >= line {
			charts = append(charts, Chart{Title: c.title, X: "clusters", Y: c.unit, Lines: []ChartLine{{Points: points}}})
		}
	}
	return charts
}

// pointsOf are the figures of rows growth/N/what, the smallest N first.
func pointsOf(all []Figure, what string) (points []ChartPoint) {
	for _, f := range all {
		part, is := strings.CutPrefix(f.Row, "growth/")
		number, is2 := strings.CutSuffix(part, "/"+what)
		clusters, err := strconv.Atoi(number)
		if is && is2 && err == nil {
			points = append(points, ChartPoint{X: float64(clusters), Y: f.Value})
		}
	}
	slices.SortFunc(points, func(a, b ChartPoint) int { return cmp.Compare(a.X, b.X) })
	return points
}
