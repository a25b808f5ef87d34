package sample

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Successive seeds take each test once, and about as many tests each.
func TestTakes(t *testing.T) {
	const tests, share = 600, 600 / oneInLong
	times := map[string]int{}
	for seed := uint64(4711); seed < 4711+oneInLong; seed++ {
		taken := 0
		for i := range tests {
			if name := fmt.Sprintf("Test%d", i); takes(seed, name) {
				times[name]++
				taken++
			}
		}
		assert.InDelta(t, share, taken, share/2, "seed %d", seed)
	}
	assert.Len(t, times, tests)
	for name, n := range times {
		assert.Equal(t, 1, n, name)
	}
}
