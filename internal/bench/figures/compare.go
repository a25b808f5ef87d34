package figures

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Change is a figure of two runs.
type Change struct {
	Row         string
	Unit        string
	Before, Now float64
	// Worse says that this is more than noise.
	Worse bool
}

// Compare holds the figures of a run against those of an earlier one. Seconds and processor time say as much about the machine
// as about the hub, so only counts, ratios and sizes are compared, each with its margin. Rows that only one of the runs
// has are left out.
func Compare(before, now []Figure) (changes []Change) {
	for _, f := range now {
		earlier, known := Find(before, f.Row)
		if !known || margin(f.Kind) < 0 {
			continue
		}
		changes = append(changes, Change{Row: f.Row, Unit: f.Unit, Before: earlier.Value, Now: f.Value, Worse: worse(earlier, f)})
	}
	return changes
}

// margin is by how much a figure may be worse before it is more than noise; less than nothing is for figures that are not
// compared.
func margin(k Kind) float64 {
	switch k {
	case Count:
		return 0.03 // on a busy machine now and then a pass runs twice
	case Size:
		return 0.15 // of a heap that is let grow until it is collected
	case Ratio:
		return 0.25 // both terms are measured by the clock or by its ticks
	case CPU, Time, Text:
		return -1
	}
	return -1
}

func worse(before, now Figure) bool {
	// A tenth of a request more, where there was none, is still noise; a whole one is not.
	const least = 0.1
	by := now.Value - before.Value
	if now.MoreIsBetter {
		by = -by
	}
	return by > max(margin(now.Kind)*before.Value, least)
}

// Worse are the changes that are for the worse.
func Worse(changes []Change) (bad []Change) {
	for _, c := range changes {
		if c.Worse {
			bad = append(bad, c)
		}
	}
	return bad
}

// ChangeTable writes changes as a table.
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
