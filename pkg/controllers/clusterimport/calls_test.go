package clusterimport

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/controllers/app"
)

var start = time.Unix(1_800_000_000, 0)

// testCalls are memberCalls with a fake clock that record which Clusters they enqueue.
type testCalls struct {
	*memberCalls
	clock    *clocktesting.FakeClock
	enqueued chan types.NamespacedName
	stop     context.CancelFunc
}

func newTestCalls(t *testing.T) *testCalls {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &testCalls{clock: clocktesting.NewFakeClock(start), enqueued: make(chan types.NamespacedName, 4096), stop: stop}
	c.memberCalls = newMemberCalls(ctx, c.clock, app.Backoff{Base: 2 * time.Second, Max: time.Minute}, func(key types.NamespacedName) { c.enqueued <- key })
	t.Cleanup(func() { stop(); c.wait() })
	return c
}

func clusterKey(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

func keyOf(name string) callKey { return callKey{clusterKey(name), installing} }

// next waits for the end of a call.
func (c *testCalls) next(t *testing.T) types.NamespacedName {
	t.Helper()
	select {
	case key := <-c.enqueued:
		return key
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "no call has ended")
		return types.NamespacedName{}
	}
}

func succeeds(context.Context) *failure { return nil }

func fails(context.Context) *failure { return failuref("Broken", "it is broken") }

func hangs(ctx context.Context) *failure {
	<-ctx.Done()
	return failuref("Hung", "no answer")
}

func mustNotRun(t *testing.T) func(context.Context) *failure {
	return func(context.Context) *failure {
		assert.Fail(t, "this call must not be made")
		return nil
	}
}

func TestMemberCalls_retries(t *testing.T) {
	t.Run("a call that succeeded is not repeated", func(t *testing.T) {
		c := newTestCalls(t)
		assert.True(t, c.ensure(keyOf("c"), "a", succeeds).running)
		assert.Equal(t, clusterKey("c"), c.next(t))
		call := c.ensure(keyOf("c"), "a", mustNotRun(t))
		assert.False(t, call.running)
		assert.Nil(t, call.failure)
		assert.True(t, c.ensure(keyOf("c"), "b", succeeds).running, "with other inputs it is another call")
		c.next(t)
	})
	t.Run("a failed call is retried when it is due", func(t *testing.T) {
		c := newTestCalls(t)
		c.ensure(keyOf("c"), "a", fails)
		c.next(t)
		call := c.ensure(keyOf("c"), "a", mustNotRun(t))
		out, failed := call.failed(c.clock.Now())
		require.True(t, failed)
		assert.Equal(t, "False Broken", string(out.Status())+" "+out.Reason)
		assert.Greater(t, out.After, time.Duration(0))
		c.clock.SetTime(call.retryAt)
		out, _ = call.failed(c.clock.Now().Add(time.Second))
		assert.Greater(t, out.After, time.Duration(0), "the Cluster is enqueued even if retryAt has just passed")

		call = c.ensure(keyOf("c"), "a", succeeds)
		assert.True(t, call.running)
		out, failed = call.failed(c.clock.Now())
		require.True(t, failed, "the failure is reported until the retry has succeeded")
		assert.Zero(t, out.After, "the end of the retry enqueues the Cluster")
		c.next(t)
		assert.Nil(t, c.ensure(keyOf("c"), "a", mustNotRun(t)).failure)
	})
	t.Run("delays double up to the maximum", func(t *testing.T) {
		c, want := newTestCalls(t), 2*time.Second
		for range 12 {
			c.ensure(keyOf("c"), "a", fails)
			c.next(t)
			call := c.ensure(keyOf("c"), "a", mustNotRun(t))
			delay := call.retryAt.Sub(c.clock.Now())
			assert.GreaterOrEqual(t, delay, want)
			assert.LessOrEqual(t, delay, want+want/5, "the jitter is at most a fifth")
			want = min(2*want, time.Minute)
			c.clock.SetTime(call.retryAt)
		}
		call := c.ensure(keyOf("c"), "b", fails)
		assert.True(t, call.running, "other inputs are tried at once")
		assert.Nil(t, call.failure, "the old failure was for other inputs")
		c.next(t)
		assert.Less(t, c.ensure(keyOf("c"), "b", mustNotRun(t)).retryAt.Sub(c.clock.Now()), 3*time.Second, "and start with the first delay")
	})
	t.Run("a panic is a failure", func(t *testing.T) {
		c := newTestCalls(t)
		c.ensure(keyOf("c"), "a", func(context.Context) *failure { panic("out of range") })
		c.next(t)
		call := c.ensure(keyOf("c"), "a", mustNotRun(t))
		assert.Equal(t, "Error", call.failure.reason)
		assert.NotContains(t, call.failure.message, "out of range")
	})
}

func TestMemberCalls_concurrency(t *testing.T) {
	t.Run("a Cluster has one call at a time", func(t *testing.T) {
		c := newTestCalls(t)
		var running, most atomic.Int32
		var passes sync.WaitGroup
		for i := range 16 {
			passes.Go(func() {
				for j := range 50 {
					c.ensure(keyOf("c"), fmt.Sprint(i, j), func(context.Context) *failure {
						if n := running.Add(1); n > most.Load() {
							most.Store(n)
						}
						defer running.Add(-1)
						return nil
					})
				}
			})
		}
		passes.Wait()
		c.wait()
		assert.Equal(t, int32(1), most.Load())
	})
	t.Run("a call with other inputs follows the running one", func(t *testing.T) {
		c, release := newTestCalls(t), make(chan struct{})
		c.ensure(keyOf("c"), "a", func(context.Context) *failure { <-release; return nil })
		assert.True(t, c.ensure(keyOf("c"), "b", mustNotRun(t)).running)
		c.forget(keyOf("c"))
		assert.True(t, c.ensure(keyOf("c"), "a", mustNotRun(t)).running, "a running call is not forgotten")
		close(release)
		assert.Equal(t, clusterKey("c"), c.next(t), "its end enqueues the Cluster")
		assert.True(t, c.ensure(keyOf("c"), "b", succeeds).running)
		c.next(t)
		c.forget(keyOf("c"))
		assert.Empty(t, c.byKey)
	})
	t.Run("a thousand unreachable members do not delay another", func(t *testing.T) {
		c := newTestCalls(t)
		for i := range 1000 {
			c.ensure(keyOf(fmt.Sprint("bad-", i)), "a", fails)
		}
		for range 1000 {
			c.next(t)
		}
		c.clock.Step(time.Hour)
		var hanging atomic.Int32
		for i := range 1000 {
			c.ensure(keyOf(fmt.Sprint("bad-", i)), "a", func(ctx context.Context) *failure { hanging.Add(1); return hangs(ctx) })
		}
		c.ensure(keyOf("good"), "a", succeeds)
		assert.Equal(t, clusterKey("good"), c.next(t))
		assert.LessOrEqual(t, hanging.Load(), int32(retrySlots))
	})
	t.Run("the stop of the hub ends every call", func(t *testing.T) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		c := newTestCalls(t)
		for i := range 400 { // more than there are slots
			c.ensure(keyOf(fmt.Sprint(i)), "a", hangs)
		}
		c.stop()
		c.wait()
		assert.Empty(t, c.enqueued, "nothing is enqueued in a hub that stops")
	})
	t.Run("a call has a deadline", func(t *testing.T) {
		c, limit := newTestCalls(t), make(chan time.Duration, 1)
		c.ensure(keyOf("c"), "a", func(ctx context.Context) *failure {
			deadline, _ := ctx.Deadline()
			limit <- time.Until(deadline)
			return nil
		})
		c.next(t)
		left := <-limit
		assert.LessOrEqual(t, left, callTimeout)
		assert.Greater(t, left, callTimeout/2)
	})
}

func TestMemberCalls_cancel(t *testing.T) {
	t.Run("a call without a slot is never made", func(t *testing.T) {
		c := newTestCalls(t)
		for range firstSlots {
			c.first <- struct{}{}
		}
		c.ensure(keyOf("c"), "a", mustNotRun(t))
		c.cancel(keyOf("c"))
		assert.Equal(t, clusterKey("c"), c.next(t), "its end enqueues the Cluster")
		assert.Empty(t, c.byKey)
	})
	t.Run("a call that waits for its server is never made", func(t *testing.T) {
		c := newTestCalls(t)
		require.Nil(t, c.servers.alone(t.Context(), "server", func(context.Context) *failure {
			c.ensure(keyOf("c"), "a", func(ctx context.Context) *failure { return c.servers.shared(ctx, "server", mustNotRun(t)) })
			c.cancel(keyOf("c"))
			c.next(t)
			return nil
		}))
		assert.Empty(t, c.byKey)
	})
	t.Run("a running call ends and is forgotten", func(t *testing.T) {
		c, begun := newTestCalls(t), make(chan struct{})
		c.ensure(keyOf("c"), "a", func(ctx context.Context) *failure { close(begun); return hangs(ctx) })
		<-begun
		c.cancel(keyOf("c"))
		c.next(t)
		assert.True(t, c.ensure(keyOf("c"), "a", succeeds).running, "as if it had never been made")
		c.next(t)
	})
}

func TestServerLocks(t *testing.T) {
	type lock = func(context.Context, string, func(context.Context) *failure) *failure
	var locks serverLocks
	t.Run("imports share a server", func(t *testing.T) {
		ran := false
		assert.Nil(t, locks.shared(t.Context(), "m", func(ctx context.Context) *failure {
			return locks.shared(ctx, "m", func(context.Context) *failure { ran = true; return nil })
		}))
		assert.True(t, ran)
		assert.Empty(t, locks.byServer, "nothing is kept for a server without calls")
	})
	for name, pair := range map[string][2]lock{
		"an import waits for a removal": {locks.alone, locks.shared},
		"a removal waits for an import": {locks.shared, locks.alone},
		"removals wait for each other":  {locks.alone, locks.alone},
	} {
		t.Run(name, func(t *testing.T) {
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			pair[0](t.Context(), "m", func(ctx context.Context) *failure {
				assert.Nil(t, pair[1](ctx, "another", succeeds), "other servers are independent")
				assert.NotNil(t, pair[1](ended, "m", mustNotRun(t)))
				return nil
			})
			assert.Empty(t, locks.byServer)
		})
	}
	t.Run("the next call starts when the server is free", func(t *testing.T) {
		begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan *failure, 1)
		go locks.alone(t.Context(), "m", func(context.Context) *failure { close(begun); <-end; return nil })
		<-begun
		go func() { ended <- locks.shared(t.Context(), "m", succeeds) }()
		close(end)
		select {
		case problem := <-ended:
			assert.Nil(t, problem)
		case <-time.After(2 * time.Minute):
			t.Fatal("it was not started")
		}
	})
}
