package matching

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

func TestLimiter(t *testing.T) {
	half := max(1, runtime.GOMAXPROCS(0)/2)
	var l Limiter
	var matching, most atomic.Int32
	var passes sync.WaitGroup
	for range 20 * half {
		passes.Go(func() {
			defer l.Begin("busy")()
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
		end := takeAll(&l, "busy")
		began := false
		go func() {
			defer l.Begin("busy")()
			began = true
		}()
		l.Begin("other")()
		synctest.Wait()
		assert.False(t, began, "a further pass of the workspace waits")
		end()
		synctest.Wait()
		assert.True(t, began)
		assert.Empty(t, l.byWorkspace)
	})
}

// takeAll takes the whole share of a workspace.
func takeAll(l *Limiter, workspace string) (end func()) {
	var ends []func()
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		ends = append(ends, l.Begin(workspace))
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}
