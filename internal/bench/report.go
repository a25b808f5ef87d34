package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// kinds lists what was sent, the most frequent first, per registration.
func kinds(sent Requests, n int) string {
	names := slices.SortedFunc(maps.Keys(sent.Kinds), func(a, b string) int { return sent.Kinds[b] - sent.Kinds[a] })
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.2f", name, float64(sent.Kinds[name])/float64(n)))
	}
	return strings.Join(parts, ", ")
}

// Table writes the figures as a table.
func Table(out io.Writer, results []Result) {
	for _, r := range results {
		verdict := "  "
		if r.Bound >= 0 && !r.Reached() {
			verdict = "!!"
		}
		fmt.Fprintf(out, "%s %-70s %10.2f %-4s %s %s\n", verdict, r.Row, r.Value, r.Unit, bound(r), r.Note)
	}
}

func bound(r Result) string {
	switch {
	case r.Bound < 0:
		return ""
	case r.AtLeast:
		return fmt.Sprintf("(at least %g)", r.Bound)
	}
	return fmt.Sprintf("(at most %g)", r.Bound)
}
