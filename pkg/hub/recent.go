package hub

import (
	"time"

	"k8s.io/utils/clock"
)

const (
	// recentFor is how long what is asked for is remembered, at least; twice as long at most. A start reads all there is within it.
	recentFor = time.Minute
	// recentMost bounds it, whoever makes objects and however fast: all words of 20,000 clusters.
	recentMost = 1 << 18
)

// recent remembers what was seen not long ago, in two generations: the old one is forgotten when the young one is old.
type recent[K comparable, V any] struct {
	clock      clock.PassiveClock
	young, old map[K]V
	born       time.Time // the young one
}

func newRecent[K comparable, V any](clock clock.PassiveClock) *recent[K, V] {
	return &recent[K, V]{clock: clock, young: map[K]V{}, born: clock.Now()}
}

func (r *recent[K, V]) get(key K) (value V, known bool) {
	if value, known = r.young[key]; known {
		return value, true
	}
	if value, known = r.old[key]; known {
		r.add(key, value)
	}
	return value, known
}

func (r *recent[K, V]) add(key K, value V) {
	if len(r.young) >= recentMost || r.clock.Since(r.born) >= recentFor {
		r.old, r.young, r.born = r.young, map[K]V{}, r.clock.Now()
	}
	r.young[key] = value
}
