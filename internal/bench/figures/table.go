package figures

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
)

// Table writes figures with what they must reach.
func Table(out io.Writer, all []Figure, limits Limits) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tmeasured\tmust be\tmet?\twhat")
	for _, f := range all {
		if f.Kind == Text {
			continue
		}
		limit, limited := limits.Of(f.Row)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.Row, amount(f), limit, verdict(f, limit, limited), f.Title)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return notes(out, all)
}

// notes are lines of their own: they are long.
func notes(out io.Writer, all []Figure) error {
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

func verdict(f Figure, limit Limit, limited bool) string {
	switch {
	case !limited:
		return ""
	case limit.Met(f.Value):
		return "yes"
	}
	return "NO"
}

func amount(f Figure) string {
	text := number(f.Value)
	if f.Unit != "" {
		text += " " + f.Unit
	}
	return text
}

// number has three digits that say something.
func number(value float64) string {
	const whole, tens = 100, 10
	digits := 2
	switch size := math.Abs(value); {
	case size >= whole || value == math.Trunc(value):
		digits = 0
	case size >= tens:
		digits = 1
	}
	return strconv.FormatFloat(value, 'f', digits, 64)
}
