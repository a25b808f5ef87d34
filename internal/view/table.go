package view

import (
	"io"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Dash stands for a cell with nothing in it.
const Dash = "-"

// Table writes aligned columns, with two spaces between them and none at the end of a line.
func Table(w io.Writer, header []string, rows [][]string) {
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cellText(cell)))
		}
	}
	for _, row := range append([][]string{header}, rows...) {
		_, _ = io.WriteString(w, line(row, widths)+"\n")
	}
}

func line(row []string, widths []int) string {
	var b strings.Builder
	for i, cell := range row {
		cell = cellText(cell)
		b.WriteString(cell)
		b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
	}
	return strings.TrimRight(b.String(), " ")
}

// cellText keeps what others wrote on one line, and from steering a terminal.
func cellText(cell string) string {
	cell = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, cell)
	if strings.TrimSpace(cell) == "" {
		return Dash
	}
	return cell
}

// Ago is how long before now a time was: "5s", "3m".
func Ago(t *metav1.Time, now time.Time) string {
	if t.IsZero() {
		return Dash
	}
	return duration.HumanDuration(max(0, now.Sub(t.Time))) + " ago"
}

// Until is how long after now a time is.
func Until(t *metav1.Time, now time.Time) string {
	switch {
	case t.IsZero():
		return "never"
	case !t.After(now):
		return "now"
	}
	return "in " + duration.HumanDuration(t.Sub(now))
}
