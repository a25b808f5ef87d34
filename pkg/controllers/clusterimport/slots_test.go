package clusterimport

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func TestSlots(t *testing.T) {
	call := func(workspace, name string) callKey {
		return callKey{types.NamespacedName{Namespace: workspace, Name: name}, installing}
	}
	// given releases a slot, and returns the calls that get one.
	given := func(s *slots, workspace string) (calls []callKey) {
		s.release(workspace)
		for key, ok := s.next(); ok; key, ok = s.next() {
			calls = append(calls, key)
		}
		return calls
	}
	t.Run("workspaces take turns", func(t *testing.T) {
		s := newSlots(1, 1)
		require.True(t, s.take("busy"))
		for i := range 3 {
			s.join(call("busy", fmt.Sprint(i)))
		}
		s.join(call("quiet", "0"))
		require.False(t, s.take("another"))
		assert.Equal(t, []callKey{call("busy", "0")}, given(s, "busy"), "the first to come")
		assert.Equal(t, []callKey{call("quiet", "0")}, given(s, "busy"), "before two that came earlier")
		assert.Equal(t, []callKey{call("busy", "1")}, given(s, "quiet"))
		assert.Equal(t, []callKey{call("busy", "2")}, given(s, "busy"))
		assert.Empty(t, given(s, "busy"))
		assertUnused(t, s)
	})
	t.Run("a workspace with all its slots leaves the others to others", func(t *testing.T) {
		s := newSlots(3, 2)
		require.True(t, s.take("busy"))
		require.True(t, s.take("busy"))
		require.False(t, s.take("busy"))
		s.join(call("busy", "third"))
		require.True(t, s.take("quiet"))
		assert.Empty(t, given(s, "quiet"))
		assert.Equal(t, []callKey{call("busy", "third")}, given(s, "busy"))
	})
	t.Run("a released slot may let two workspaces have one", func(t *testing.T) {
		s := newSlots(6, 3)
		for _, workspace := range []string{"w", "x", "w", "x"} {
			require.True(t, s.take(workspace))
		}
		s.join(call("x", "0"))
		s.join(call("w", "0"))
		assert.Equal(t, []callKey{call("x", "0"), call("w", "0")}, given(s, "w"))
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
			for i := range row.hostile {
				for workspace := fmt.Sprint("hostile-", i); s.take(workspace); {
				}
			}
			assert.Equal(t, row.taken, s.taken)
			assert.True(t, s.take("another"))
		})
	}
	t.Run("one that leaves the queue gets no slot", func(t *testing.T) {
		s := newSlots(1, 1)
		require.True(t, s.take("a"))
		for _, key := range []callKey{call("b", "gone"), call("c", "gone"), call("c", "next")} {
			s.join(key)
		}
		s.leave(call("b", "gone"))
		s.leave(call("c", "gone"))
		assert.Equal(t, []callKey{call("c", "next")}, given(s, "a"))
		assert.Empty(t, given(s, "c"))
		assertUnused(t, s)
	})
}

// assertUnused checks that nothing is kept for workspaces without calls.
func assertUnused(t *testing.T, s *slots) {
	t.Helper()
	assert.Zero(t, s.taken)
	assert.Empty(t, s.used)
	assert.Empty(t, s.waiting)
	assert.Empty(t, s.turns)
}
