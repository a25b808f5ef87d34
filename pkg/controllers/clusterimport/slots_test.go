package clusterimport

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSlots(t *testing.T) {
	// wants starts to acquire a slot and waits until it has it or is queued.
	wants := func(t *testing.T, s *slots, ctx context.Context, workspace string) <-chan bool {
		t.Helper()
		acquired := make(chan bool, 1)
		before := s.asked(workspace)
		go func() { acquired <- s.acquire(ctx, workspace) }()
		require.Eventually(t, func() bool { return s.asked(workspace) > before }, patience, pause)
		return acquired
	}
	t.Run("workspaces take turns", func(t *testing.T) {
		s := newSlots(1, 1)
		require.True(t, s.acquire(t.Context(), "busy"))
		var busy []<-chan bool
		for range 3 {
			busy = append(busy, wants(t, s, t.Context(), "busy"))
		}
		quiet := wants(t, s, t.Context(), "quiet")
		s.release("busy")
		assert.True(t, <-busy[0], "the first to come")
		s.release("busy")
		assert.True(t, <-quiet, "before two that came earlier")
		s.release("quiet")
		assert.True(t, <-busy[1])
		s.release("busy")
		assert.True(t, <-busy[2])
		s.release("busy")
		assertUnused(t, s)
	})
	t.Run("a workspace with all its slots leaves the others to others", func(t *testing.T) {
		s := newSlots(3, 2)
		require.True(t, s.acquire(t.Context(), "busy"))
		require.True(t, s.acquire(t.Context(), "busy"))
		third := wants(t, s, t.Context(), "busy")
		require.True(t, s.acquire(t.Context(), "quiet"))
		s.release("quiet")
		assert.Empty(t, third)
		s.release("busy")
		assert.True(t, <-third)
	})
	t.Run("a released slot may let two workspaces have one", func(t *testing.T) {
		s := newSlots(6, 3)
		for _, workspace := range []string{"w", "x", "w", "x"} {
			require.True(t, s.acquire(t.Context(), workspace))
		}
		first, second := wants(t, s, t.Context(), "x"), wants(t, s, t.Context(), "w")
		s.release("w")
		assert.True(t, <-first)
		assert.True(t, <-second)
	})
	for _, row := range []struct{ total, perWorkspace, hostile, taken int }{
		{firstSlots, firstPerWorkspace, 1, 64},
		{firstSlots, firstPerWorkspace, 4, 224},
		{firstSlots, firstPerWorkspace, 9, 255},
		{retrySlots, retriesPerWorkspace, 1, 32},
		{retrySlots, retriesPerWorkspace, 3, 56},
		{retrySlots, retriesPerWorkspace, 6, 63},
	} {
		t.Run(fmt.Sprintf("another workspace waits for none of %d workspaces with more calls than %d slots", row.hostile, row.total), func(t *testing.T) {
			s := newSlots(row.total, row.perWorkspace)
			ctx, cancel := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			for i := range row.hostile {
				workspace := fmt.Sprint("hostile-", i)
				for range row.perWorkspace + 1 {
					calls.Go(func() {
						if s.acquire(ctx, workspace) {
							<-ctx.Done() // the member never answers
							s.release(workspace)
						}
					})
				}
				require.Eventually(t, func() bool { return s.asked(workspace) == row.perWorkspace+1 }, patience, pause)
			}
			another := wants(t, s, t.Context(), "another")
			s.mu.Lock()
			taken, used := s.taken, s.used["another"]
			s.mu.Unlock()
			assert.Equal(t, row.taken+1, taken)
			require.Equal(t, 1, used, "without a release of the others")
			assert.True(t, <-another)
			s.release("another")
			cancel()
			calls.Wait()
			assertUnused(t, s)
		})
	}
	t.Run("one that gives up leaves the queue", func(t *testing.T) {
		s := newSlots(1, 1)
		require.True(t, s.acquire(t.Context(), "a"))
		ctx, cancel := context.WithCancel(t.Context())
		gone, next := wants(t, s, ctx, "b"), wants(t, s, t.Context(), "c")
		cancel()
		assert.False(t, <-gone)
		s.release("a")
		assert.True(t, <-next)
		s.release("c")
		assertUnused(t, s)
	})
}

// asked is the number of calls of a workspace that have a slot or wait for one.
func (s *slots) asked(workspace string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used[workspace] + len(s.waiting[workspace])
}

// assertUnused checks that nothing is kept for workspaces without calls.
func assertUnused(t *testing.T, s *slots) {
	t.Helper()
	assert.Zero(t, s.taken)
	assert.Empty(t, s.used)
	assert.Empty(t, s.waiting)
	assert.Empty(t, s.turns)
}
