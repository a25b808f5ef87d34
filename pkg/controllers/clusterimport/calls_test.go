package clusterimport

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
)

// patience is how long a test waits for what must happen, and pause the time between two looks.
const patience, pause = time.Minute, time.Millisecond

var start = time.Unix(1_800_000_000, 0)

// testCalls are memberCalls with a fake clock that record which Clusters they enqueue. If they enqueue one because a slot is free, it begins
// the call, as the next pass over the Cluster does.
type testCalls struct {
	*memberCalls
	clock    *clocktesting.FakeClock
	enqueued chan types.NamespacedName
	stop     context.CancelFunc

	mu      sync.Mutex
	ensured map[types.NamespacedName]func() memberCall
}

func (c *testCalls) ensure(key callKey, inputs string, do func(context.Context) *failure) memberCall {
	again := func() memberCall { return c.memberCalls.ensure(key, inputs, do) }
	c.mu.Lock()
	if !c.state(key).isPending() {
		c.ensured[key.cluster] = again
	}
	c.mu.Unlock()
	return again()
}

// ensure reserves a slot for a call that needs no preparation, and begins it.
func (c *memberCalls) ensure(key callKey, inputs string, do func(context.Context) *failure) memberCall {
	call := c.reserve(key, inputs)
	c.begin(key, do)
	return call
}

// isOffered reports whether a slot is offered to the call.
func (c *memberCalls) isOffered(key callKey) bool { return c.state(key) == offered }

func newTestCalls(t *testing.T) *testCalls {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &testCalls{
		clock: clocktesting.NewFakeClock(start), enqueued: make(chan types.NamespacedName, 4096), stop: stop, ensured: map[types.NamespacedName]func() memberCall{},
	}
	c.memberCalls = newMemberCalls(ctx, c.clock, app.Backoff{Base: 2 * time.Second, Max: time.Minute}, func(key types.NamespacedName) {
		c.mu.Lock()
		again := c.ensured[key]
		c.mu.Unlock()
		if again != nil && c.isOffered(callKey{key, installing}) {
			again()
			return
		}
		c.enqueued <- key
	})
	t.Cleanup(func() { stop(); c.wait() })
	return c
}

// wantAsked asserts how many calls of workspace ns run or wait for a slot.
func (c *testCalls) wantAsked(t *testing.T, want int) {
	t.Helper()
	assert.Equal(t, want, c.first.asked("ns")+c.retries.asked("ns"))
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
		assert.True(t, c.ensure(keyOf("c"), "a", succeeds).state.isPending())
		assert.Equal(t, clusterKey("c"), c.next(t))
		call := c.ensure(keyOf("c"), "a", mustNotRun(t))
		assert.False(t, call.state.isPending())
		assert.Nil(t, call.failure)
		assert.True(t, c.ensure(keyOf("c"), "b", succeeds).state.isPending(), "with other inputs it is another call")
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
		assert.True(t, call.state.isPending())
		out, failed = call.failed(c.clock.Now())
		require.True(t, failed, "the failure is reported until the retry has succeeded")
		assert.Zero(t, out.After, "the end of the retry enqueues the Cluster")
		c.next(t)
		assert.Nil(t, c.ensure(keyOf("c"), "a", mustNotRun(t)).failure)
	})
	t.Run("only a call that is retried says so", func(t *testing.T) {
		f := transientf(fleet.ReasonUnreachable, "no answer")
		assert.Equal(t, "no answer", f.stalled().Message)
		out, _ := memberCall{failure: f}.failed(time.Now())
		assert.Equal(t, "no answer; retrying", out.Message)
		out, _ = memberCall{failure: failuref(fleet.ReasonForbidden, "give it this right")}.failed(time.Now())
		assert.Equal(t, "give it this right", out.Message)
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
		assert.True(t, call.state.isPending(), "other inputs are tried at once")
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
		assert.True(t, c.ensure(keyOf("c"), "b", mustNotRun(t)).state.isPending())
		assert.True(t, c.ensure(keyOf("c"), "a", mustNotRun(t)).state.isPending())
		close(release)
		assert.Equal(t, clusterKey("c"), c.next(t), "its end enqueues the Cluster")
		assert.True(t, c.ensure(keyOf("c"), "b", succeeds).state.isPending())
		c.next(t)
		c.drop(keyOf("c"))
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
		assert.LessOrEqual(t, hanging.Load(), int32(retriesPerWorkspace))
	})
	for name, retried := range map[string]bool{"first calls": false, "retries": true} {
		t.Run("a workspace with 300 silent members does not delay another: "+name, func(t *testing.T) {
			c := newTestCalls(t)
			good := callKey{types.NamespacedName{Namespace: "another", Name: "good"}, installing}
			if retried {
				for i := range 300 {
					c.ensure(keyOf(fmt.Sprint("silent-", i)), "a", fails)
				}
				c.ensure(good, "a", fails)
				for range 301 {
					c.next(t)
				}
				c.clock.Step(time.Hour)
			}
			for i := range 300 {
				c.ensure(keyOf(fmt.Sprint("silent-", i)), "a", hangs)
			}
			require.Eventually(t, func() bool { return c.first.asked("ns")+c.retries.asked("ns") == 300 }, patience, pause)
			c.ensure(good, "a", succeeds)
			assert.Equal(t, good.cluster, c.next(t), "no silent member has ended before")
			c.wantAsked(t, 300)
		})
	}
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

// Thousands of calls of one workspace may wait for a slot.
func TestMemberCalls_waiting(t *testing.T) {
	// full returns calls without a free slot, and a function that frees one.
	full := func(t *testing.T) (*testCalls, func()) {
		t.Helper()
		c := newTestCalls(t)
		for range firstPerWorkspace {
			require.True(t, c.first.tryAcquire("ns"))
		}
		require.False(t, c.first.tryAcquire("ns"))
		return c, func() { c.first.release("ns") }
	}
	offeredTo := func(t *testing.T, c *testCalls, name string) {
		t.Helper()
		assert.Equal(t, clusterKey(name), c.next(t), "the Cluster is enqueued")
		require.True(t, c.isOffered(keyOf(name)))
	}
	t.Run("no prepared objects are kept for a call that waits", func(t *testing.T) {
		c, _ := full(t)
		prepared := &[1 << 20]byte{}
		held := weak.Make(prepared)
		c.memberCalls.ensure(keyOf("c"), "a", func(context.Context) *failure { prepared[0]++; return nil })
		runtime.GC()
		assert.Nil(t, held.Value())
	})
	t.Run("it is prepared when it has a slot", func(t *testing.T) {
		c, free := full(t)
		assert.Equal(t, waiting, c.reserve(keyOf("c"), "a").state)
		assert.Equal(t, waiting, c.find(keyOf("c"), "a").state, "a caller prepares nothing yet")
		assert.Equal(t, absent, c.find(keyOf("c"), "b").state)
		free()
		offeredTo(t, c, "c")
		assert.Equal(t, offered, c.find(keyOf("c"), "a").state)
		require.Equal(t, preparing, c.reserve(keyOf("c"), "a").state)
		c.begin(keyOf("c"), fails)
		c.begin(keyOf("c"), mustNotRun(t))
		assert.Equal(t, clusterKey("c"), c.next(t))
		assert.NotNil(t, c.reserve(keyOf("c"), "a").failure)
		c.wantAsked(t, firstPerWorkspace-1)
	})
	t.Run("its inputs change until it has a slot", func(t *testing.T) {
		c, free := full(t)
		c.reserve(keyOf("c"), "a")
		c.reserve(keyOf("c"), "b")
		free()
		offeredTo(t, c, "c")
		c.memberCalls.ensure(keyOf("c"), "b", succeeds)
		c.next(t)
		assert.Equal(t, ended, c.find(keyOf("c"), "b").state)
	})
	// pass is a pass that does this and returns.
	pass := func(c *testCalls, do func()) {
		_ = c.pass(func() error { do(); return nil }, keyOf("c"))
	}
	t.Run("a slot for which nothing can be prepared is given back", func(t *testing.T) {
		c := newTestCalls(t)
		reserve := func() {
			require.Equal(t, preparing, c.reserve(keyOf("c"), "a").state)
		}
		pass(c, reserve)
		c.wait()
		assertUnused(t, c.first)
		assert.Empty(t, c.byKey)
		assert.Empty(t, c.enqueued, "the pass that could not prepare it would be repeated at once")
		c.memberCalls.ensure(keyOf("c"), "a", fails)
		assert.Equal(t, clusterKey("c"), c.next(t))

		c.clock.Step(time.Hour)
		pass(c, reserve)
		c.wait()
		assertUnused(t, c.retries)
		assert.True(t, c.find(keyOf("c"), "a").due(c.clock.Now()), "it stays a retry")
	})
	t.Run("a call that the next pass does not ask for", func(t *testing.T) {
		for name, hasOffer := range map[string]bool{"it waits": false, "a slot is offered to it": true} {
			t.Run(name, func(t *testing.T) {
				c, free := full(t)
				c.reserve(keyOf("c"), "a")
				if hasOffer {
					free()
					offeredTo(t, c, "c")
				}
				require.Error(t, c.pass(func() error { return errors.New("out") }, keyOf("c")))
				require.True(t, c.state(keyOf("c")).isPending(), "the repetition of a pass that failed may ask for it")
				require.Equal(t, hasOffer, c.isOffered(keyOf("c")))
				pass(c, func() {})
				c.wait()
				assert.Empty(t, c.byKey)
				if hasOffer {
					c.wantAsked(t, firstPerWorkspace-1)
				} else {
					c.wantAsked(t, firstPerWorkspace)
				}
			})
		}
	})
	t.Run("a call that the next pass asks for waits on", func(t *testing.T) {
		c, free := full(t)
		pass(c, func() { c.reserve(keyOf("c"), "a") })
		pass(c, func() { c.reserve(keyOf("c"), "b") })
		pass(c, func() { c.find(keyOf("c"), "a") })
		free()
		offeredTo(t, c, "c")
	})
	t.Run("a slot that no pass takes is free again", func(t *testing.T) {
		c, free := full(t)
		c.reserve(keyOf("c"), "a")
		free()
		offeredTo(t, c, "c")
		require.Eventually(t, c.clock.HasWaiters, patience, pause)
		c.clock.Step(prepareTimeout)
		require.Eventually(t, func() bool { return c.first.asked("ns") == firstPerWorkspace-1 }, patience, pause)
		c.wait()
		assert.Empty(t, c.byKey)
		assert.Equal(t, clusterKey("c"), c.next(t), "it is enqueued once more")
		c.begin(keyOf("c"), mustNotRun(t))
	})
	t.Run("a pass that takes its slot late has as much time as another", func(t *testing.T) {
		c, free := full(t)
		c.reserve(keyOf("c"), "a")
		free()
		offeredTo(t, c, "c")
		c.clock.Step(prepareTimeout - time.Second)
		require.Equal(t, preparing, c.reserve(keyOf("c"), "a").state)
		c.clock.Step(prepareTimeout - time.Second)
		assert.True(t, c.clock.HasWaiters(), "its time has not passed")
		c.begin(keyOf("c"), fails)
		assert.Equal(t, clusterKey("c"), c.next(t))
		assert.NotNil(t, c.find(keyOf("c"), "a").failure, "it was made")
	})
	t.Run("a call whose preparation takes too long is made by the next pass", func(t *testing.T) {
		c := newTestCalls(t)
		require.Equal(t, preparing, c.reserve(keyOf("c"), "a").state)
		c.clock.Step(prepareTimeout)
		assert.Equal(t, clusterKey("c"), c.next(t))
		c.begin(keyOf("c"), mustNotRun(t))
		c.wait()
		assertUnused(t, c.first)
		assert.Equal(t, preparing, c.reserve(keyOf("c"), "a").state)
	})
	t.Run("a call that is dropped while it is prepared is never made", func(t *testing.T) {
		c := newTestCalls(t)
		c.reserve(keyOf("c"), "a")
		c.drop(keyOf("c"))
		c.begin(keyOf("c"), mustNotRun(t))
		c.wait()
		assertUnused(t, c.first)
		assert.Empty(t, c.byKey)
	})
}

func TestMemberCalls_drop(t *testing.T) {
	t.Run("a call without a slot is never made", func(t *testing.T) {
		c := newTestCalls(t)
		for range firstPerWorkspace {
			require.True(t, c.first.acquire(t.Context(), clusterKey("c").Namespace))
		}
		c.ensure(keyOf("c"), "a", mustNotRun(t))
		c.drop(keyOf("c"))
		assert.Equal(t, clusterKey("c"), c.next(t), "its end enqueues the Cluster")
		assert.Empty(t, c.byKey)
	})
	t.Run("a call that waits for its member is never made", func(t *testing.T) {
		c := newTestCalls(t)
		require.Nil(t, c.members.alone(patience)(t.Context(), "member", "ws", func(context.Context) *failure {
			c.ensure(keyOf("c"), "a", func(ctx context.Context) *failure { return c.members.shared(ctx, "member", "ws", mustNotRun(t)) })
			c.drop(keyOf("c"))
			c.next(t)
			return nil
		}))
		assert.Empty(t, c.byKey)
	})
	t.Run("a running call ends and is forgotten", func(t *testing.T) {
		c, begun := newTestCalls(t), make(chan struct{})
		c.ensure(keyOf("c"), "a", func(ctx context.Context) *failure { close(begun); return hangs(ctx) })
		<-begun
		c.drop(keyOf("c"))
		c.next(t)
		assert.True(t, c.ensure(keyOf("c"), "a", succeeds).state.isPending(), "as if it had never been made")
		c.next(t)
	})
}
