package figures

import (
	"slices"
	"time"
)

// Times are how long many of the same took.
type Times []time.Duration

// Quantile of the times: 0.5 is the median. None have the quantile 0.
func (t Times) Quantile(q float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Millis is a duration in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// PerSecond is a rate; nothing that took no time has the rate 0.
func PerSecond(count int, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return float64(count) / took.Seconds()
}

// Each is a share of a sum for each of n things.
func Each[T int | int64 | float64](sum T, n int) float64 { return float64(sum) / float64(n) }

// MiB is a number of bytes in mebibytes.
func MiB(bytes int64) float64 { return float64(bytes) / (1 << 20) }
