package agent

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestPausesGrowToTheirLimitAndStayThere(t *testing.T) {
	timing := DefaultTiming()
	for range 20 {
		retry, poll := timing.retry(), timing.poll()
		for i := range 200 {
			r, p := retry.Step(), poll.Step()
			assert.GreaterOrEqual(t, r, min(timing.RetryFirst<<min(i, 20), timing.RetryMax))
			assert.LessOrEqual(t, r, timing.RetryMax*12/10)
			assert.GreaterOrEqual(t, p, timing.PollFirst)
			assert.LessOrEqual(t, p, timing.PollMax*12/10)
		}
	}
}

func TestAFleetThatLostItsHubComesBackWithinAThirdOfItsInterval(t *testing.T) {
	for interval, limit := range map[time.Duration]time.Duration{
		time.Minute: 2 * time.Minute, 6 * time.Minute: 2 * time.Minute, 15 * time.Minute: 5 * time.Minute, time.Hour: 20 * time.Minute,
	} {
		pauses, longest := DefaultTiming().comeback(interval), time.Duration(0)
		for range 200 {
			longest = max(longest, pauses.Step())
		}
		assert.GreaterOrEqual(t, longest, limit, interval)
		assert.LessOrEqual(t, longest, limit*12/10, interval)
		assert.Less(t, DefaultTiming().comeback(interval).Step(), 2*time.Second, "at first it may have been a moment")
	}
}

func TestNoTwoAgentsBeatInStep(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 1000 {
		d := spread(15 * time.Minute)
		assert.GreaterOrEqual(t, d, 13*time.Minute+30*time.Second)
		assert.LessOrEqual(t, d, 16*time.Minute+30*time.Second)
		seen[d] = true
	}
	assert.Greater(t, len(seen), 900)
}

func TestAPauseEndsWithTheTimeTheSignalOrTheContext(t *testing.T) {
	still := clocktesting.NewFakeClock(time.Unix(0, 0))
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	assert.True(t, pause(t.Context(), still, time.Hour, wake))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	assert.False(t, pause(ended, still, time.Hour, wake))

	over := make(chan bool, 1)
	go func() { over <- pause(t.Context(), still, time.Hour, wake) }()
	require.Eventually(t, still.HasWaiters, patience, time.Millisecond)
	still.Step(time.Hour)
	assert.False(t, <-over)
}

func TestConnectionsHaveLimitsOnPurpose(t *testing.T) {
	l := testLife(t)
	c := l.hubConfig(hubAccess{server: hubURL, token: "t"})
	assert.Equal(t, l.config.Timing.Request, c.Timeout)
	assert.InDelta(t, hubQPS, c.QPS, 0)
	assert.Equal(t, hubBurst, c.Burst)
	assert.NotNil(t, c.RateLimiter)
	assert.Equal(t, "fleetagent/test", c.UserAgent)
	assert.Equal(t, rest.TLSClientConfig{}, c.TLSClientConfig, "trust is a matter of the transport")
	assert.NotNil(t, newTransport(nil).Proxy, "the proxy of the environment")
	assert.Equal(t, 30*time.Second, DefaultTiming().Request)
}
