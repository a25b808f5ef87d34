// Package figures keeps what was measured: what it must reach, how it is shown, kept, and held against earlier runs.
package figures

// Kind says what a figure depends on, and so with what it may be compared.
type Kind string

// The kinds of figures.
const (
	// Count is a number of requests or objects, which no machine changes.
	Count Kind = "count"
	// Ratio is one figure of a run in terms of another one of it, such as a rate in terms of the floor's.
	Ratio Kind = "ratio"
	// Size is memory or disk. Garbage collection makes it vary.
	Size Kind = "size"
	// CPU is processor time, which depends on the processor.
	CPU Kind = "cpu"
	// Time is what the wall clock says: seconds, or things per second. It depends on all that the machine does.
	Time Kind = "time"
	// Text is a figure without a number, only with a note.
	Text Kind = "text"
)

// Figure is one thing that was measured.
type Figure struct {
	// Row is its name for limits and other runs, such as growth/1000/memory.
	Row string `json:"row"`
	// Title says to people what it is.
	Title string `json:"title"`
	// Value is in Unit, which is empty for plain numbers.
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	Kind  Kind    `json:"kind"`
	// MoreIsBetter is for rates.
	MoreIsBetter bool `json:"moreIsBetter,omitempty"`
	// Note is what a number cannot tell.
	Note string `json:"note,omitempty"`
}

// Find returns the figure of a row.
func Find(all []Figure, row string) (Figure, bool) {
	for _, f := range all {
		if f.Row == row {
			return f, true
		}
	}
	return Figure{}, false
}
