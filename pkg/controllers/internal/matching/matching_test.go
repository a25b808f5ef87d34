package matching

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

func TestLimiter(t *testing.T) {
	half := max(1, runtime.GOMAXPROCS(0)/2)
	l := Limiter{Clock: clock.RealClock{}}
	var matching, most atomic.Int32
	var passes sync.WaitGroup
	for range 20 * half {
		passes.Go(func() {
			end, err := l.Begin(t.Context(), "busy")
			if !assert.NoError(t, err) {
				return
			}
			defer end()
			now := matching.Add(1)
			defer matching.Add(-1)
			for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
			}
			runtime.Gosched()
		})
	}
	passes.Wait()
	assert.LessOrEqual(t, int(most.Load()), half)
}

func TestLimiter_otherWorkspaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Limiter{Clock: clock.RealClock{}}
		end := takeAll(t, &l, "busy")
		began := false
		go func() {
			pass, err := l.Begin(t.Context(), "busy")
			if assert.NoError(t, err) {
				defer pass()
				began = true
			}
		}()
		begin(t, &l, "other")()
		synctest.Wait()
		assert.False(t, began, "a further pass of the workspace waits")
		end()
		synctest.Wait()
		assert.True(t, began)
	})
}

func TestLimiter_share(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const pass = time.Second
	part := func() time.Duration { return pass * share / time.Duration(runtime.GOMAXPROCS(0)) } // the time in which a workspace gets one pass
	// count returns the number of passes that a workspace without a pause gets within a period.
	count := func(t *testing.T, l *Limiter, period time.Duration) (passes int) {
		for end := time.Now().Add(period); time.Now().Before(end); passes++ {
			done := begin(t, l, "busy")
			time.Sleep(pass)
			done()
		}
		return passes
	}
	t.Run("of several workspaces", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := Limiter{Clock: clock.RealClock{}}
			begin(t, &l, "other")()
			beforehand := int(advance/part()) + 1
			assert.InDelta(t, beforehand, count(t, &l, time.Duration(beforehand)*pass), 1, "no pass waits")
			begin(t, &l, "other")()
			for range 10 {
				count(t, &l, advance/2)
				began := time.Now()
				begin(t, &l, "other")()
				assert.Equal(t, began, time.Now(), "the other workspace does not wait")
			}
			passes := count(t, &l, advance/2)
			assert.InDelta(t, int(advance/2/part()), passes, 1, "as many as the share has")
		})
	})
	t.Run("of the only workspace", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := Limiter{Clock: clock.RealClock{}}
			assert.Equal(t, 1000, count(t, &l, 1000*pass), "no pass waits")
			begin(t, &l, "other")()
			began := time.Now()
			begin(t, &l, "busy")()
			assert.LessOrEqual(t, time.Since(began), part(), "it does not make up for the time when it was the only one")
		})
	})
}

func TestLimiter_forgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Limiter{Clock: clock.RealClock{}}
		begin(t, &l, "first")()
		time.Sleep(advance + time.Second)
		begin(t, &l, "second")()
		assert.Len(t, l.byWorkspace, 1)
	})
}

func TestLimiter_contextEnds(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	synctest.Test(t, func(t *testing.T) {
		l := Limiter{Clock: clock.RealClock{}}
		end := takeAll(t, &l, "busy")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Begin(ctx, "busy")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "workspace busy")

		time.Sleep(time.Hour)
		begin(t, &l, "other")()
		end()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.Begin(ctx, "busy")
		require.ErrorIs(t, err, context.DeadlineExceeded, "the workspace has had more than its share")
		time.Sleep(24 * time.Hour)
		begin(t, &l, "busy")()
		assert.Zero(t, l.byWorkspace["busy"].passes)
	})
}

// begin begins a pass whose context does not end.
func begin(t *testing.T, l *Limiter, workspace string) (end func()) {
	end, err := l.Begin(t.Context(), workspace)
	require.NoError(t, err)
	return end
}

// takeAll takes the whole share of a workspace.
func takeAll(t *testing.T, l *Limiter, workspace string) (end func()) {
	var ends []func()
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		ends = append(ends, begin(t, l, workspace))
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}
