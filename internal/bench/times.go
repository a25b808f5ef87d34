package bench

import (
	"slices"
	"time"
)

// times are how long many of the same took.
type times []time.Duration

// quantile of the times: 0.5 is the median. None have the quantile 0.
func (t times) quantile(q float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
