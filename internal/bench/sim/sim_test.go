package sim

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s names
		s.add("early")
		s.add("early")
		require.NoError(t, s.wait(t.Context(), "early"))
		go func() {
			time.Sleep(time.Second)
			s.add("late")
		}()
		began := time.Now()
		require.NoError(t, s.wait(t.Context(), "late"))
		assert.Equal(t, time.Second, time.Since(began))
	})
}

func TestWaitsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s names
		began := time.Now()
		require.ErrorContains(t, s.wait(t.Context(), "x"), "x did not appear")
		assert.Equal(t, Patience, time.Since(began))
		require.ErrorContains(t, Await(t.Context(), "y", func(context.Context) (bool, error) { return false, nil }), "waiting for y")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, s.wait(ctx, "x"), context.Canceled)
		require.ErrorIs(t, Pause(ctx, time.Hour), context.Canceled)
	})
}

func TestInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, done atomic.Int64
		began := time.Now()
		require.NoError(t, InParallel(10, 3, func(int) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			done.Add(1)
			return nil
		}))
		assert.Equal(t, int64(10), done.Load())
		assert.Equal(t, int64(3), most.Load())
		assert.Equal(t, 4*time.Second, time.Since(began))
	})
	broken := errors.New("broken")
	require.ErrorIs(t, InParallel(2, 0, func(n int) error {
		if n == 1 {
			return broken
		}
		return nil
	}), broken)
}

func TestSteadily(t *testing.T) {
	for name, test := range map[string]struct {
		each   time.Duration
		calls  int
		at     []time.Duration // of the first calls
		enough time.Duration   // when all have ended
	}{
		"as fast as planned": {each: time.Second, calls: 10, at: []time.Duration{0, time.Second, 2 * time.Second}, enough: 10 * time.Second},
		"slower than a call": {each: 1900 * time.Millisecond, calls: 10, at: []time.Duration{0, time.Second, 2 * time.Second}, enough: 10900 * time.Millisecond},
		"too slow":           {each: 4 * time.Second, calls: 6, at: []time.Duration{0, time.Second, 4 * time.Second}, enough: 13 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				at, began := map[int]time.Duration{}, time.Now()
				calls, failures, err := steadily(t.Context(), 10, 2, 10*time.Second, func(n int) error {
					mu.Lock()
					at[n] = time.Since(began)
					mu.Unlock()
					time.Sleep(test.each)
					if n%2 == 1 {
						return errors.New("odd")
					}
					return nil
				})
				require.NoError(t, err)
				assert.Equal(t, test.calls, calls)
				assert.Equal(t, test.calls/2, failures)
				assert.Equal(t, test.enough, time.Since(began))
				for n, when := range test.at {
					assert.Equal(t, when, at[n], "call %d", n)
				}
			})
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := steadily(ended, 2, 1, time.Hour, func(int) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
}

func TestBeatsDelay(t *testing.T) {
	b := Beats{Over: time.Minute}
	last, seen := time.Duration(-1), map[time.Duration]bool{}
	for n := range 5 { // far enough apart for the jitter
		delay := b.delay(n, 5)
		assert.Greater(t, delay, last)
		assert.Less(t, delay, time.Minute)
		assert.Equal(t, delay, b.delay(n, 5), "the same in every run")
		last, seen[delay] = delay, true
	}
	assert.Len(t, seen, 5)
	assert.Zero(t, Beats{}.delay(3, 5), "no delay")
}

func TestHeartbeat(t *testing.T) {
	agents := &Agents{api: &API{SystemNamespace: "cattle-fleet-system"}}
	patch := func(checkin time.Duration) map[string]any {
		var operations []map[string]any
		require.NoError(t, json.Unmarshal(agents.heartbeat(checkin), &operations))
		require.Len(t, operations, 1)
		assert.Equal(t, "add", operations[0]["op"])
		assert.Equal(t, "/status/agent", operations[0]["path"])
		return operations[0]["value"].(map[string]any)
	}
	plain := patch(0)
	seen, err := time.Parse(time.RFC3339, plain["lastSeen"].(string))
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), seen, time.Minute)
	assert.Equal(t, "cattle-fleet-system", plain["namespace"])
	assert.Len(t, plain, 2)
	assert.Equal(t, "15m0s", patch(15 * time.Minute)["checkinInterval"])
}
