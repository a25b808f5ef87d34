package hub

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestWhatIsAskedForIsRemembered(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRecent[string, int](clock)
	r.add("used", 1)
	r.add("forgotten", 2)
	for n := range 5 {
		value, known := r.get("used")
		assert.True(t, known)
		assert.Equal(t, 1, value)
		clock.Step(recentFor)
		r.add("other", n)
	}
	_, known := r.get("forgotten")
	assert.False(t, known)
	assert.LessOrEqual(t, len(r.young)+len(r.old), 4)
}

func TestWhoeverIsFastFillsNoMemory(t *testing.T) {
	r := newRecent[int, int](clocktesting.NewFakeClock(time.Now()))
	for n := range 3 * recentMost {
		r.add(n, n)
	}
	assert.Equal(t, 2*recentMost, len(r.young)+len(r.old))
	_, known := r.get(0)
	assert.False(t, known)
	last, _ := r.get(3*recentMost - 1)
	assert.Equal(t, 3*recentMost-1, last)
}
