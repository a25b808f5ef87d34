package clusterimport

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/registration"
)

// patience is how long a test waits for what must happen, and pause the time between two looks.
const patience, pause = time.Minute, time.Millisecond

var start = time.Unix(1_800_000_000, 0)

// testCalls are memberCalls with a fake clock that record which Clusters they enqueue.
type testCalls struct {
	*memberCalls
	clock    *clocktesting.FakeClock
	enqueued chan types.NamespacedName
	stop     context.CancelFunc
	ensured  map[types.NamespacedName]func() memberCall
}

// ensure reserves a slot for a call that needs no preparation, and begins it. While the call waits, next repeats that when the call is offered a slot.
func (c *testCalls) ensure(key callKey, inputs string, do func(context.Context) *failure) memberCall {
	again := func() memberCall { return c.memberCalls.ensure(key, inputs, do) }
	call := again()
	if call.state == waiting {
		c.ensured[key.cluster] = again
	}
	return call
}

func (c *memberCalls) ensure(key callKey, inputs string, do func(context.Context) *failure) memberCall {
	defer c.beginPass(key.cluster)()
	call := c.reserve(key, inputs)
	c.begin(key, do)
	return call
}

func newTestCalls(t *testing.T) *testCalls {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &testCalls{
		clock: clocktesting.NewFakeClock(start), enqueued: make(chan types.NamespacedName, 4096), stop: stop, ensured: map[types.NamespacedName]func() memberCall{},
	}
	c.memberCalls = newMemberCalls(ctx, c.clock, app.Backoff{Base: 2 * time.Second, Max: time.Minute}, func(key types.NamespacedName) { c.enqueued <- key })
	t.Cleanup(func() { stop(); c.wait() })
	return c
}

// takeSlots takes slots for workspace ns, as calls that run do.
func (c *memberCalls) takeSlots(t *testing.T, s *slots, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		require.True(t, s.take("ns"))
	}
}

// releaseSlot ends one of the calls of takeSlots.
func (c *memberCalls) releaseSlot(s *slots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release(keyOf("ended"), &memberCall{slots: s})
}

// asked is the number of calls of workspace ns that have a slot or wait for one.
func (c *memberCalls) asked(s *slots) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.used["ns"] + len(s.waiting["ns"])
}

func clusterKey(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

func keyOf(name string) callKey { return callKey{clusterKey(name), installing} }

// next waits for the end of a call.
func (c *testCalls) next(t *testing.T) types.NamespacedName {
	t.Helper()
	for {
		select {
		case key := <-c.enqueued:
			if again := c.ensured[key]; again != nil {
				delete(c.ensured, key)
				again()
				continue
			}
			return key
		case <-time.After(2 * time.Minute):
			require.FailNow(t, "no call has ended")
		}
	}
}

// wantEnqueued asserts which Clusters were enqueued since the last call.
func (c *testCalls) wantEnqueued(t *testing.T, names ...string) {
	t.Helper()
	var enqueued []string
	for len(c.enqueued) > 0 {
		enqueued = append(enqueued, (<-c.enqueued).Name)
	}
	assert.Equal(t, names, enqueued)
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
	t.Run("a failure is logged when it changes", func(t *testing.T) {
		c, log := newTestCalls(t), logtest.NewGlobal()
		try := func(do func(context.Context) *failure) {
			c.clock.SetTime(c.last(keyOf("logged")).retryAt)
			c.ensure(keyOf("logged"), "a", do)
			c.next(t)
		}
		other := func(context.Context) *failure { return failuref("Other", "it is something else") }
		for _, do := range []func(context.Context) *failure{fails, fails, other, other, succeeds} {
			try(do)
		}
		var logged []string
		for _, entry := range log.AllEntries() {
			if entry.Data[registration.LogCluster] == clusterKey("logged").String() {
				logged = append(logged, entry.Level.String()+" "+entry.Message)
			}
		}
		require.Len(t, logged, 2)
		assert.Contains(t, logged[0], "warning A call to the member failed (install): Broken: ")
		assert.Equal(t, "warning A call to the member failed (install): Other: it is something else", logged[1])
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
		assert.Len(t, c.retries.waiting["ns"], 1000-retriesPerWorkspace)
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
			c.ensure(good, "a", succeeds)
			assert.Equal(t, good.cluster, c.next(t), "no silent member has ended before")
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
	// full returns calls without a free slot.
	full := func(t *testing.T) *testCalls {
		t.Helper()
		c := newTestCalls(t)
		c.takeSlots(t, c.first, firstPerWorkspace)
		return c
	}
	pass := func(c *testCalls, do func()) {
		defer c.beginPass(clusterKey("c"))()
		do()
	}
	reserves := func(t *testing.T, c *testCalls, inputs string, want callState) func() {
		return func() { assert.Equal(t, want, c.reserve(keyOf("c"), inputs).state) }
	}
	// offered returns calls of which "c" has waited for a slot and got one.
	withOffer := func(t *testing.T) *testCalls {
		t.Helper()
		c := full(t)
		pass(c, reserves(t, c, "a", waiting))
		c.releaseSlot(c.first)
		c.wantEnqueued(t, "c")
		require.Equal(t, offered, c.last(keyOf("c")).state)
		return c
	}
	t.Run("it has no goroutine", func(t *testing.T) {
		c := full(t)
		before := runtime.NumGoroutine()
		for i := range 100 {
			c.memberCalls.ensure(keyOf(fmt.Sprint(i)), "a", mustNotRun(t))
		}
		assert.LessOrEqual(t, runtime.NumGoroutine(), before, "one of an earlier test may end meanwhile")
	})
	t.Run("no prepared objects are kept for it", func(t *testing.T) {
		c := full(t)
		prepared := &[1 << 20]byte{}
		held := weak.Make(prepared)
		c.memberCalls.ensure(keyOf("c"), "a", func(context.Context) *failure { prepared[0]++; return nil })
		runtime.GC()
		assert.Nil(t, held.Value())
	})
	t.Run("it is prepared when it has a slot", func(t *testing.T) {
		c := full(t)
		pass(c, func() {
			assert.True(t, c.last(keyOf("c")).isUnprepared("a"))
			reserves(t, c, "a", waiting)()
			assert.False(t, c.last(keyOf("c")).isUnprepared("a"))
			assert.True(t, c.last(keyOf("c")).isUnprepared("b"))
		})
		c.releaseSlot(c.first)
		c.wantEnqueued(t, "c")
		pass(c, func() {
			assert.True(t, c.last(keyOf("c")).isUnprepared("a"))
			reserves(t, c, "a", preparing)()
			c.begin(keyOf("c"), fails)
			c.begin(keyOf("c"), mustNotRun(t))
		})
		assert.Equal(t, clusterKey("c"), c.next(t))
		assert.NotNil(t, c.reserve(keyOf("c"), "a").failure)
		assert.Equal(t, firstPerWorkspace-1, c.asked(c.first))
	})
	t.Run("its inputs change until it has a slot", func(t *testing.T) {
		c := full(t)
		pass(c, reserves(t, c, "a", waiting))
		pass(c, reserves(t, c, "b", waiting))
		c.releaseSlot(c.first)
		c.wantEnqueued(t, "c")
		c.memberCalls.ensure(keyOf("c"), "b", succeeds)
		c.next(t)
		assert.Equal(t, ended, c.last(keyOf("c")).state)
		assert.Equal(t, "b", c.last(keyOf("c")).inputs)
	})
	t.Run("a slot for which nothing can be prepared is free again", func(t *testing.T) {
		c := newTestCalls(t)
		pass(c, reserves(t, c, "a", preparing))
		assertUnused(t, c.first)
		c.wantEnqueued(t) // the pass that could not prepare it would be repeated at once
		c.memberCalls.ensure(keyOf("c"), "a", fails)
		assert.Equal(t, clusterKey("c"), c.next(t))

		c.clock.Step(time.Hour)
		pass(c, reserves(t, c, "a", preparing))
		assertUnused(t, c.retries)
		pass(c, func() {
			reserves(t, c, "a", preparing)()
			assert.Equal(t, 1, c.asked(c.retries), "it stays a retry")
			assert.NotNil(t, c.last(keyOf("c")).failure)
		})
	})
	t.Run("the slot of a pass that panics is free again", func(t *testing.T) {
		c := newTestCalls(t)
		assert.Panics(t, func() { pass(c, func() { reserves(t, c, "a", preparing)(); panic("out of range") }) })
		assertUnused(t, c.first)
	})
	t.Run("the end of a pass that does not take its slot gives it to the next call", func(t *testing.T) {
		c := withOffer(t)
		require.Equal(t, waiting, c.reserve(keyOf("next"), "a").state)
		pass(c, func() {}) // it failed, or returned early
		assert.Equal(t, withdrawn, c.last(keyOf("c")).state)
		assert.Equal(t, offered, c.last(keyOf("next")).state)
		c.wantEnqueued(t, "next") // and not "c": a pass that failed is repeated with backoff, not because of a slot

		pass(c, reserves(t, c, "a", waiting))
		assert.Equal(t, []callKey{keyOf("c")}, c.first.waiting["ns"], "it joins the queue again")
	})
	t.Run("a slot that it gets during a pass is kept for the next pass", func(t *testing.T) {
		for name, asksFirst := range map[string]bool{"the pass has asked for it": true, "the pass returns early": false} {
			t.Run(name, func(t *testing.T) {
				c := full(t)
				pass(c, reserves(t, c, "a", waiting))
				pass(c, func() {
					if asksFirst {
						reserves(t, c, "a", waiting)()
					}
					c.releaseSlot(c.first)
				})
				require.Equal(t, offered, c.last(keyOf("c")).state)
				c.wantEnqueued(t, "c") // the work queue repeats the pass
				pass(c, reserves(t, c, "a", preparing))
			})
		}
	})
	t.Run("a pass takes the slot that it gets before it asks", func(t *testing.T) {
		c := full(t)
		pass(c, reserves(t, c, "a", waiting))
		pass(c, func() { c.releaseSlot(c.first); reserves(t, c, "a", preparing)() })
	})
	t.Run("nobody asks for it any more", func(t *testing.T) {
		for name, hasOffer := range map[string]bool{"it waits": false, "it is offered a slot": true} {
			t.Run(name, func(t *testing.T) {
				c := full(t)
				if hasOffer {
					c = withOffer(t)
				} else {
					pass(c, reserves(t, c, "a", waiting))
				}
				asked := c.asked(c.first)
				pass(c, func() { c.withdrawUnbegun(clusterKey("c"), true) })
				assert.Equal(t, withdrawn, c.last(keyOf("c")).state)
				assert.Equal(t, asked-1, c.asked(c.first))
			})
		}
	})
	t.Run("a pass that does not get as far as to ask leaves it in the queue", func(t *testing.T) {
		c := full(t)
		pass(c, reserves(t, c, "a", waiting))
		require.Equal(t, waiting, c.reserve(keyOf("next"), "a").state)
		pass(c, func() { c.withdrawUnbegun(clusterKey("c"), false) })
		c.releaseSlot(c.first)
		c.wantEnqueued(t, "c")
	})
}

func TestMemberCalls_drop(t *testing.T) {
	t.Run("a call without a slot leaves the queue", func(t *testing.T) {
		c := newTestCalls(t)
		c.takeSlots(t, c.first, firstPerWorkspace)
		c.ensure(keyOf("c"), "a", mustNotRun(t))
		c.drop(keyOf("c"))
		assert.Empty(t, c.byKey)
	})
	t.Run("a slot that is offered goes to the next call", func(t *testing.T) {
		c := newTestCalls(t)
		c.takeSlots(t, c.first, firstPerWorkspace)
		for _, name := range []string{"c", "next"} {
			require.Equal(t, waiting, c.reserve(keyOf(name), "a").state)
		}
		c.releaseSlot(c.first)
		c.drop(keyOf("c"))
		c.wantEnqueued(t, "c", "next")
	})
	t.Run("a call that is prepared is never made", func(t *testing.T) {
		c := newTestCalls(t)
		c.reserve(keyOf("c"), "a")
		c.drop(keyOf("c"))
		c.begin(keyOf("c"), mustNotRun(t))
		assertUnused(t, c.first)
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
