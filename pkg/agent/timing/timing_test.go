package timing

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestBackoffs(t *testing.T) {
	d := Default()
	for range 20 {
		retry, poll := d.Retry(), d.Poll()
		for i := range 200 {
			r, p := retry.Step(), poll.Step()
			assert.GreaterOrEqual(t, r, min(d.RetryFirst<<min(i, 20), d.RetryMax))
			assert.LessOrEqual(t, r, d.RetryMax*12/10)
			assert.GreaterOrEqual(t, p, d.PollFirst)
			assert.LessOrEqual(t, p, d.PollMax*12/10)
		}
	}
}

func TestRetryHeartbeat(t *testing.T) {
	for interval, limit := range map[time.Duration]time.Duration{
		time.Minute: 2 * time.Minute, 6 * time.Minute: 2 * time.Minute, 15 * time.Minute: 5 * time.Minute, time.Hour: 20 * time.Minute,
	} {
		pauses, longest := Default().RetryHeartbeat(interval), time.Duration(0)
		for range 200 {
			longest = max(longest, pauses.Step())
		}
		assert.GreaterOrEqual(t, longest, limit, interval)
		assert.LessOrEqual(t, longest, limit*12/10, interval)
		assert.Less(t, Default().RetryHeartbeat(interval).Step(), 2*time.Second, "the outage may be short")
	}
}

func TestJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 1000 {
		d := Jitter(15 * time.Minute)
		assert.GreaterOrEqual(t, d, 13*time.Minute+30*time.Second)
		assert.LessOrEqual(t, d, 16*time.Minute+30*time.Second)
		seen[d] = true
	}
	assert.Greater(t, len(seen), 900)
}

func TestPause(t *testing.T) {
	still := clocktesting.NewFakeClock(time.Unix(0, 0))
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	assert.True(t, Pause(t.Context(), still, time.Hour, wake), "woken")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	assert.False(t, Pause(ended, still, time.Hour, wake), "the context has ended")

	over := make(chan bool, 1)
	go func() { over <- Pause(t.Context(), still, time.Hour, wake) }()
	require.Eventually(t, still.HasWaiters, time.Minute, time.Millisecond)
	still.Step(time.Hour)
	assert.False(t, <-over, "the time is over")
}
