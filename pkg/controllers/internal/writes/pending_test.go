package writes

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestWhatWasWrittenIsAwaitedForAWhile(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	p := NewPending(clock)
	assert.False(t, p.Has("x"))
	p.Add("x")
	assert.True(t, p.Has("x"))
	clock.Step(PendingMax - time.Second)
	assert.True(t, p.Has("x"))
	clock.Step(time.Second)
	assert.False(t, p.Has("x"), "the event was missed")
	assert.Empty(t, p.until)
	p.Add("x")
	p.Forget("x")
	assert.False(t, p.Has("x"))
}

func TestWhatNobodyAsksForAnyMoreIsSwept(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	p := NewPending(clock)
	for i := range 10 * sweepMin {
		p.Add(fmt.Sprint(i))
		clock.Step(PendingMax)
	}
	assert.LessOrEqual(t, len(p.until), 2*sweepMin)
}
