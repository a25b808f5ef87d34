package bench

import (
	"fmt"
	"io"
)

// tolerance is how much worse a figure may be that depends on the machine, which others use too.
const tolerance = 1.25

// Change is a figure of two runs.
type Change struct {
	Row         string
	Unit        string
	Before, Now float64
	// Worse says that this is more than noise.
	Worse bool
}

// Compare holds the figures of a run against those of an earlier one. A figure that is counted must not grow at all; one that
// is timed may by a quarter. Rows that only one of the runs has are left out.
func Compare(before, now []Result) []Change {
	earlier := map[string]Result{}
	for _, r := range before {
		earlier[r.Row] = r
	}
	var changes []Change
	for _, r := range now {
		e, known := earlier[r.Row]
		if !known || r.Note != "" {
			continue
		}
		changes = append(changes, Change{Row: r.Row, Unit: r.Unit, Before: e.Value, Now: r.Value, Worse: worse(e, r)})
	}
	return changes
}

func worse(before, now Result) bool {
	switch {
	case now.Counted:
		const rounding = 0.05 // now and then a pass runs twice
		return now.Value > before.Value+max(rounding, rounding*before.Value)
	case now.AtLeast:
		return now.Value < before.Value/tolerance
	}
	return now.Value > before.Value*tolerance
}

// TableOf writes changes as a table and says how many are for the worse.
func TableOf(out io.Writer, changes []Change) (bad int) {
	for _, c := range changes {
		mark := "  "
		if c.Worse {
			mark = "!!"
			bad++
		}
		fmt.Fprintf(out, "%s %-70s %10.2f -> %10.2f %s\n", mark, c.Row, c.Before, c.Now, c.Unit)
	}
	return bad
}
