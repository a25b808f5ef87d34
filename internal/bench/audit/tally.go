package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Tally is how many requests there were, without leases, events and watches.
type Tally struct {
	Writes, Reads int
	// Failed are those of them that were answered with an error.
	Failed int
	// Kinds counts them by verb and resource, and FailedKinds those that failed by their code too.
	Kinds, FailedKinds map[string]int
	// Last is when the last one was answered.
	Last time.Time
}

// Count counts.
func Count(all []Request) Tally {
	t := Tally{Kinds: map[string]int{}, FailedKinds: map[string]int{}}
	for _, r := range all {
		t.add(r)
	}
	return t
}

func (t *Tally) add(r Request) {
	switch {
	case r.IsWrite():
		t.Writes++
	case r.IsRead():
		t.Reads++
	default:
		return
	}
	t.Kinds[r.Kind()]++
	if r.Failed() {
		t.Failed++
		t.FailedKinds[fmt.Sprintf("%s %d", r.Kind(), r.ResponseStatus.Code)]++
	}
	if r.Answered.After(t.Last) {
		t.Last = r.Answered
	}
}

// All are writes and reads.
func (t Tally) All() int { return t.Writes + t.Reads }

// Each lists what was sent for each of n things, the most frequent first, and then what failed.
func (t Tally) Each(n int) string {
	text := each(t.Kinds, n)
	if t.Failed > 0 {
		text += "; failed: " + each(t.FailedKinds, n)
	}
	return text
}

func each(kinds map[string]int, n int) string {
	names := slices.SortedFunc(maps.Keys(kinds), func(a, b string) int {
		return cmp.Or(kinds[b]-kinds[a], strings.Compare(a, b))
	})
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.2f", name, float64(kinds[name])/float64(n)))
	}
	return strings.Join(parts, ", ")
}

// Latencies are how long the API server had each request that it answered at once: watches, which it keeps, are left out.
func Latencies(all []Request) (took []time.Duration) {
	for _, r := range all {
		if r.Verb != "watch" {
			took = append(took, r.Took())
		}
	}
	return took
}
