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
)

func TestLimiter(t *testing.T) {
	half := max(1, runtime.GOMAXPROCS(0)/2)
	var l Limiter
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
	assert.Empty(t, l.byWorkspace)
}

func TestLimiter_otherWorkspaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		end := takeAll(t, &l, "busy")
		began := false
		go func() {
			pass, err := l.Begin(t.Context(), "busy")
			if assert.NoError(t, err) {
				defer pass()
				began = true
			}
		}()
		other, err := l.Begin(t.Context(), "other")
		require.NoError(t, err)
		other()
		synctest.Wait()
		assert.False(t, began, "a further pass of the workspace waits")
		end()
		synctest.Wait()
		assert.True(t, began)
		assert.Empty(t, l.byWorkspace)
	})
}

func TestLimiter_contextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		end := takeAll(t, &l, "busy")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		none, err := l.Begin(ctx, "busy")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "workspace busy")
		none()
		end()
		assert.Empty(t, l.byWorkspace)
	})
}

// takeAll takes the whole share of a workspace.
func takeAll(t *testing.T, l *Limiter, workspace string) (end func()) {
	var ends []func()
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		pass, err := l.Begin(t.Context(), workspace)
		require.NoError(t, err)
		ends = append(ends, pass)
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}
