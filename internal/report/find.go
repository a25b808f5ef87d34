package report

import (
	"slices"
	"sort"
	"strings"
)

// finder finds many values in a text, in one pass over the text.
type finder struct {
	values []string // sorted
	// shorter has, for each value, the index of the longest other one with which it begins, or -1.
	shorter    []int
	beginnings map[string]bool // the first bytes of the values, as many as the shortest has
	steps      int             // how many values were compared with a part of a text
}

// span is a part of a text that is a value.
type span struct{ from, to, value int }

// newFinder prepares a search. No value is shorter than the constant shortest.
func newFinder(values []string) *finder {
	f := &finder{values: slices.Sorted(slices.Values(values)), beginnings: make(map[string]bool, len(values))}
	f.shorter = make([]int, len(f.values))
	for i, value := range f.values {
		f.beginnings[value[:shortest]] = true
		// Values that begin with another one follow it in the order, before any that does not.
		j := i - 1
		for j >= 0 && !strings.HasPrefix(value, f.values[j]) {
			j = f.shorter[j]
		}
		f.shorter[i] = j
	}
	return f
}

// find returns, for each place of the text at which values begin, the longest of them. Those of different places may overlap.
func (f *finder) find(text string) (spans []span) {
	for from := 0; from+shortest <= len(text); from++ {
		if !f.beginnings[text[from:from+shortest]] {
			continue
		}
		rest := text[from:]
		// The last value in the order that is not behind the rest of the text begins as the rest does, if any value does: it is the longest
		// one, or begins with it.
		last := sort.Search(len(f.values), func(i int) bool {
			f.steps++
			return f.values[i] > rest
		}) - 1
		for ; last >= 0; last = f.shorter[last] {
			f.steps++
			if strings.HasPrefix(rest, f.values[last]) {
				spans = append(spans, span{from, from + len(f.values[last]), last})
				break
			}
		}
	}
	return spans
}
