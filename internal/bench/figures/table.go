package figures

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
)

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
