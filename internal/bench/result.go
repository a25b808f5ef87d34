package bench

import (
	"time"
)

// Result is one figure.
type Result struct {
	// Row names what was measured; the same row of two runs can be compared.
	Row string `json:"row"`
	// Value is the figure, in Unit.
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Bound is what the figure must not exceed, or with AtLeast must reach; 0 means that it is only shown.
	Bound   float64 `json:"bound,omitempty"`
	AtLeast bool    `json:"atLeast,omitempty"`
	// Counted says that the figure is a number of requests or objects, which does not depend on the machine.
	Counted bool `json:"counted,omitempty"`
	// Note says how to read it.
	Note string `json:"note,omitempty"`
}

// Reached says whether the figure keeps its bound.
func (r Result) Reached() bool {
	switch {
	case r.Bound == 0 && !r.Counted, r.Bound < 0:
		return true
	case r.AtLeast:
		return r.Value >= r.Bound
	}
	return r.Value <= r.Bound
}

// atMost is a figure with an upper bound.
func atMost(row string, value float64, unit string, bound float64) Result {
	return Result{Row: row, Value: value, Unit: unit, Bound: bound}
}

// atLeast is a figure with a lower bound.
func atLeast(row string, value float64, unit string, bound float64) Result {
	return Result{Row: row, Value: value, Unit: unit, Bound: bound, AtLeast: true}
}

// counted is a number of requests with an upper bound, which may be 0.
func counted(row string, value float64, unit string, bound float64) Result {
	return Result{Row: row, Value: value, Unit: unit, Bound: bound, Counted: true}
}

// shown is a figure without a bound.
func shown(row string, value float64, unit string) Result {
	return Result{Row: row, Value: value, Unit: unit, Bound: -1}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func perSecond(count int, took time.Duration) float64 { return float64(count) / took.Seconds() }

const mebibyte = 1 << 20
