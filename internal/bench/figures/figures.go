// Package figures defines the figures that the bench measures, checks them against limits, prints them as tables, stores them in records, and
// compares them with earlier records.
package figures

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// Kind is the kind of a figure. It determines with which figures of other runs it can be compared.
type Kind string

// The kinds of figures.
const (
	// Count is a number of requests or objects, which is the same on every machine.
	Count Kind = "count"
	// Ratio is one figure of a run divided by another figure of the same run.
	Ratio Kind = "ratio"
	// Size is memory or disk space. It varies with garbage collection.
	Size Kind = "size"
	// CPU is processor time, which depends on the processor.
	CPU Kind = "cpu"
	// Time is seconds or events per second. It depends on everything else that the machine does.
	Time Kind = "time"
)

// Figure is one measured value.
type Figure struct {
	// Row is the name that limits and other runs use, such as growth/1000/memory.
	Row string `json:"row"`
	// Title describes the figure.
	Title string `json:"title"`
	// Value is in Unit, which is empty for plain numbers.
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	Kind  Kind    `json:"kind"`
	// MoreIsBetter is true for rates.
	MoreIsBetter bool `json:"moreIsBetter,omitempty"`
	// Note has details, such as the requests that were counted.
	Note string `json:"note,omitempty"`
}

// Counted is a number of requests or objects.
func Counted(row, title string, value float64) Figure {
	return Figure{Row: row, Title: title, Value: value, Kind: Count}
}

// Seconds is a duration in seconds.
func Seconds(row, title string, d time.Duration) Figure {
	return Figure{Row: row, Title: title, Value: d.Seconds(), Unit: "s", Kind: Time}
}

// Milliseconds is a duration in milliseconds.
func Milliseconds(row, title string, d time.Duration) Figure {
	return Figure{Row: row, Title: title, Value: Millis(d), Unit: "ms", Kind: Time}
}

// Rate is a number of events per second.
func Rate(row, title string, value float64) Figure {
	return Figure{Row: row, Title: title, Value: value, Unit: "1/s", Kind: Time, MoreIsBetter: true}
}

// Processor is the processor time for each of n items, in milliseconds.
func Processor(row, title string, sum time.Duration, n int) Figure {
	return Figure{Row: row, Title: title, Value: Millis(sum) / float64(n), Unit: "ms", Kind: CPU}
}

// CPUs is the number of CPUs that are used all of the time.
func CPUs(row, title string, used, took time.Duration) Figure {
	f := Figure{Row: row, Title: title, Unit: "CPUs", Kind: CPU}
	if took > 0 {
		f.Value = used.Seconds() / took.Seconds()
	}
	return f
}

// Bytes is memory or disk space, in MiB.
func Bytes(row, title string, bytes int64) Figure {
	return Figure{Row: row, Title: title, Value: float64(bytes) / (1 << 20), Unit: "MiB", Kind: Size}
}

// Quotient is a figure of a run divided by another figure of that run. It is 0 if the other one is 0, such as a CPU time below one tick of the
// kernel: a record in JSON cannot have an infinite value.
func Quotient(row, title string, a, b float64) Figure {
	f := Figure{Row: row, Title: title, Kind: Ratio}
	if b != 0 {
		f.Value = a / b
	}
	return f
}

// WithNote adds details to a figure.
func (f Figure) WithNote(note string) Figure {
	f.Note = note
	return f
}

// Find returns the figure of a row.
func Find(all []Figure, row string) (Figure, bool) {
	i := slices.IndexFunc(all, func(f Figure) bool { return f.Row == row })
	if i < 0 {
		return Figure{}, false
	}
	return all[i], true
}

// Samples are the durations of repetitions of one operation.
type Samples []time.Duration

// Quantile returns a quantile of the durations: 0.5 is the median. The quantile of an empty list is 0.
func (t Samples) Quantile(q float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Millis is a duration in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// PerSecond is a rate; it is 0 if no time has passed.
func PerSecond(count int, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return float64(count) / took.Seconds()
}

// Table writes the figures with their limits as a table, and then a line for each note.
func Table(out io.Writer, all []Figure, limits Limits) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tmeasured\tmust be\tmet?\twhat")
	for _, f := range all {
		limit, limited := limits.Of(f.Row)
		met := ""
		switch {
		case limited && limit.Met(f.Value):
			met = "yes"
		case limited:
			met = "NO"
		}
		value := number(f.Value)
		if f.Unit != "" {
			value += " " + f.Unit
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.Row, value, limit, met, f.Title)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, f := range all {
		if f.Note == "" {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s: %s\n", f.Row, f.Note); err != nil {
			return err
		}
	}
	return nil
}

// ChangeTable writes a comparison of two runs.
func ChangeTable(out io.Writer, changes []Change) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tbefore\tnow\t\t")
	for _, c := range changes {
		mark := ""
		if c.Worse {
			mark = "WORSE"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.Row, number(c.Before), number(c.Now), c.Unit, mark)
	}
	return w.Flush()
}

// number formats a value with three significant digits, or as a whole number.
func number(value float64) string {
	digits := 2
	switch size := math.Abs(value); {
	case size >= 100 || value == math.Trunc(value):
		digits = 0
	case size >= 10:
		digits = 1
	}
	return strconv.FormatFloat(value, 'f', digits, 64)
}
