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

// bench is a pool whose time a test holds and whose notices it reads.
type bench struct {
	*pool
	clock    *clocktesting.FakeClock
	notified chan types.NamespacedName
	stop     context.CancelFunc
}

func newBench(t *testing.T) *bench {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	b := &bench{clock: clocktesting.NewFakeClock(start), notified: make(chan types.NamespacedName, 4096), stop: stop}
	b.pool = newPool(ctx, b.clock, app.Backoff{Base: 2 * time.Second, Max: time.Minute}, func(key types.NamespacedName) { b.notified <- key })
	t.Cleanup(func() { stop(); b.wait() })
	return b
}

func clusterKey(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

// next waits for the end of a call.
func (b *bench) next(t *testing.T) types.NamespacedName {
	t.Helper()
	select {
	case key := <-b.notified:
		return key
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "no call has ended")
		return types.NamespacedName{}
	}
}

func works(context.Context) callResult { return callResult{} }

func breaks(context.Context) callResult { return callResult{failure: failed("Broken", "it is broken")} }

func hangs(ctx context.Context) callResult {
	<-ctx.Done()
	return callResult{failure: failed("Hung", "no answer")}
}

func mustNotRun(t *testing.T) call {
	return func(context.Context) callResult {
		assert.Fail(t, "this call must not be made")
		return callResult{}
	}
}

func TestCallIsMadeOnceAndItsResultKept(t *testing.T) {
	b := newBench(t)
	assert.True(t, b.attempt(clusterKey("c"), "a", works).running)
	assert.Equal(t, clusterKey("c"), b.next(t))
	a := b.attempt(clusterKey("c"), "a", mustNotRun(t))
	assert.False(t, a.running)
	assert.Nil(t, a.result.failure)
}

func TestFailedCallIsLeftAloneUntilItsTimeHasCome(t *testing.T) {
	b := newBench(t)
	b.attempt(clusterKey("c"), "a", breaks)
	b.next(t)
	a := b.attempt(clusterKey("c"), "a", mustNotRun(t))
	assert.Equal(t, "Broken", a.result.failure.reason)
	assert.Equal(t, "False Broken", string(a.problem(b.clock.Now()).Status())+" "+a.problem(b.clock.Now()).Reason)
	assert.Greater(t, a.problem(b.clock.Now()).After, time.Duration(0))
	b.clock.SetTime(a.retryAt)
	assert.Greater(t, a.problem(b.clock.Now().Add(time.Second)).After, time.Duration(0), "a moment that has passed meanwhile brings it back too")
	a = b.attempt(clusterKey("c"), "a", works)
	assert.True(t, a.running)
	assert.Equal(t, "Broken", a.result.failure.reason, "what is wrong is said until it is known to be right")
	assert.Zero(t, a.problem(b.clock.Now()).After, "its end brings the Cluster back")
	b.next(t)
	assert.Nil(t, b.attempt(clusterKey("c"), "a", mustNotRun(t)).result.failure)
}

func TestDelaysDoubleToTheirEnd(t *testing.T) {
	b := newBench(t)
	want := 2 * time.Second
	for range 12 {
		b.attempt(clusterKey("c"), "a", breaks)
		b.next(t)
		a := b.attempt(clusterKey("c"), "a", mustNotRun(t))
		delay := a.retryAt.Sub(b.clock.Now())
		assert.GreaterOrEqual(t, delay, want)
		assert.LessOrEqual(t, delay, want+want/5, "jitter is a fifth at most")
		want = min(2*want, time.Minute)
		b.clock.SetTime(a.retryAt)
	}
}

func TestOtherInputsAreTriedAtOnceAndFromTheFirstDelay(t *testing.T) {
	b := newBench(t)
	for range 4 {
		b.attempt(clusterKey("c"), "a", breaks)
		b.next(t)
		b.clock.Step(2 * time.Minute)
	}
	b.attempt(clusterKey("c"), "a", breaks)
	b.next(t)
	a := b.attempt(clusterKey("c"), "b", breaks)
	assert.True(t, a.running, "at once")
	assert.Nil(t, a.result.failure, "the old failure was of other inputs")
	b.next(t)
	a = b.attempt(clusterKey("c"), "b", mustNotRun(t))
	assert.Less(t, a.retryAt.Sub(b.clock.Now()), 3*time.Second)
}

func TestSuccessWithOtherInputsIsNoneWithThese(t *testing.T) {
	b := newBench(t)
	b.attempt(clusterKey("c"), "a", works)
	b.next(t)
	assert.True(t, b.attempt(clusterKey("c"), "b", works).running)
	b.next(t)
}

func TestClusterHasOneCallAtATime(t *testing.T) {
	b := newBench(t)
	release := make(chan struct{})
	b.attempt(clusterKey("c"), "a", func(context.Context) callResult { <-release; return callResult{} })
	assert.True(t, b.attempt(clusterKey("c"), "b", mustNotRun(t)).running, "the one with other inputs ends first")
	close(release)
	assert.Equal(t, clusterKey("c"), b.next(t), "its end brings the Cluster back")
	assert.True(t, b.attempt(clusterKey("c"), "b", works).running)
	b.next(t)
}

func TestManyPassesNeverMakeTwoCallsAtOnce(t *testing.T) {
	b := newBench(t)
	var running, most atomic.Int32
	var passes sync.WaitGroup
	for i := range 16 {
		passes.Go(func() {
			for j := range 50 {
				b.attempt(clusterKey("c"), fmt.Sprint(i, j), func(context.Context) callResult {
					if n := running.Add(1); n > most.Load() {
						most.Store(n)
					}
					defer running.Add(-1)
					return callResult{}
				})
			}
		})
	}
	passes.Wait()
	b.wait()
	assert.Equal(t, int32(1), most.Load())
}

func TestThousandHangingMembersThatFailedDelayNoOther(t *testing.T) {
	b := newBench(t)
	for i := range 1000 {
		b.attempt(clusterKey(fmt.Sprint("bad-", i)), "a", breaks)
	}
	for range 1000 {
		b.next(t)
	}
	b.clock.Step(time.Hour)
	var hanging atomic.Int32
	for i := range 1000 {
		b.attempt(clusterKey(fmt.Sprint("bad-", i)), "a", func(ctx context.Context) callResult { hanging.Add(1); return hangs(ctx) })
	}
	b.attempt(clusterKey("good"), "a", works)
	assert.Equal(t, clusterKey("good"), b.next(t))
	assert.LessOrEqual(t, hanging.Load(), int32(failedSlots))
}

func TestEndOfTheHubEndsEveryCall(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	b := newBench(t)
	for i := range 400 { // more than there are slots
		b.attempt(clusterKey(fmt.Sprint(i)), "a", hangs)
	}
	b.stop()
	b.wait()
	assert.Empty(t, b.notified, "nobody is brought back to a hub that stops")
}

func TestCallEndsAtItsTimeOut(t *testing.T) {
	b := newBench(t)
	limit := make(chan time.Duration, 1)
	b.attempt(clusterKey("c"), "a", func(ctx context.Context) callResult {
		deadline, _ := ctx.Deadline()
		limit <- time.Until(deadline)
		return callResult{}
	})
	b.next(t)
	left := <-limit
	assert.LessOrEqual(t, left, callTimeout)
	assert.Greater(t, left, callTimeout/2, "what passes between two lines of a test is not that long")
}

func TestPanicOfACallIsAFailure(t *testing.T) {
	b := newBench(t)
	b.attempt(clusterKey("c"), "a", func(context.Context) callResult { panic("out of range") })
	b.next(t)
	a := b.attempt(clusterKey("c"), "a", mustNotRun(t))
	assert.Equal(t, "Error", a.result.failure.reason)
	assert.NotContains(t, a.result.failure.message, "out of range")
}

func TestForgottenClusterStartsAnew(t *testing.T) {
	b := newBench(t)
	b.attempt(clusterKey("c"), "a", breaks)
	b.attempt(clusterKey("c"+clean), "a", breaks)
	assert.Equal(t, []types.NamespacedName{clusterKey("c"), clusterKey("c")}, []types.NamespacedName{b.next(t), b.next(t)},
		"a clean-up brings back its Cluster")
	b.forgetAll("ns/c")
	assert.Empty(t, b.attempts)
	assert.Empty(t, b.delays)
}

func TestRunningCallIsNotForgotten(t *testing.T) {
	b := newBench(t)
	release := make(chan struct{})
	b.attempt(clusterKey("c"), "a", func(context.Context) callResult { <-release; return callResult{} })
	b.forget(clusterKey("c"))
	assert.True(t, b.attempt(clusterKey("c"), "a", mustNotRun(t)).running, "a second one would run beside it")
	close(release)
	b.next(t)
	b.forget(clusterKey("c"))
	assert.Empty(t, b.attempts)
}

// fill takes every slot of those that have not failed, until release is closed.
func (b *bench) fill() (release chan struct{}) {
	release = make(chan struct{})
	for range freshSlots {
		b.fresh <- struct{}{}
	}
	go func() {
		<-release
		for range freshSlots {
			<-b.fresh
		}
	}()
	return release
}

func TestACallThatIsCancelledBeforeItsSlotIsNeverMade(t *testing.T) {
	b := newBench(t)
	release := b.fill()
	defer close(release)
	b.attempt(clusterKey("c"), "a", mustNotRun(t))
	b.cancel(clusterKey("c"))
	assert.Equal(t, clusterKey("c"), b.next(t), "its end brings the Cluster back")
	assert.Empty(t, b.attempts)
}

func TestACallThatIsCancelledBeforeItsTurnIsNeverMade(t *testing.T) {
	b := newBench(t)
	require.True(t, b.turns.take(t.Context(), "server", true))
	b.attempt(clusterKey("c"), "a", b.turns.among("server", mustNotRun(t)))
	b.forgetAll("ns/c")
	b.next(t)
	b.turns.give("server", true)
	assert.Empty(t, b.attempts)

	ended, end := context.WithCancel(t.Context())
	end()
	assert.False(t, b.turns.take(ended, "server", false), "also when it is its turn at that moment")
}

func TestACallThatRunsIsCutOffAndForgotten(t *testing.T) {
	b := newBench(t)
	begun := make(chan struct{})
	b.attempt(clusterKey("c"), "a", func(ctx context.Context) callResult { close(begun); return hangs(ctx) })
	<-begun
	b.cancel(clusterKey("c"))
	b.next(t)
	b.cancel(clusterKey("c"))
	assert.True(t, b.attempt(clusterKey("c"), "a", works).running, "as if it had never been made")
	b.next(t)
}
