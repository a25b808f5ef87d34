package config

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestStoreCallsListeners(t *testing.T) {
	store := &Store{}
	var calls []string
	for _, name := range []string{"first", "second"} {
		store.OnChange(func(before, after Hub) {
			calls = append(calls, fmt.Sprintf("%s: %q to %q, now %q", name, before.APIServerURL, after.APIServerURL, store.Get().APIServerURL))
		})
	}
	assert.True(t, store.Set(Hub{APIServerURL: "a"}))
	assert.False(t, store.Set(Hub{APIServerURL: "a"}), "nothing changed")
	assert.True(t, store.Set(Hub{APIServerURL: "b"}))
	assert.Equal(t, []string{
		`first: "" to "a", now "a"`, `second: "" to "a", now "a"`,
		`first: "a" to "b", now "b"`, `second: "a" to "b", now "b"`,
	}, calls)
}

func TestStoreComparesPointedValues(t *testing.T) {
	yes, no, alsoYes := true, false, true
	store := NewStore(Hub{ManageAgent: &yes})
	assert.False(t, store.Set(Hub{ManageAgent: &alsoYes}))
	assert.True(t, store.Set(Hub{ManageAgent: &no}))
}

func TestStoreListenerMayUseTheStore(t *testing.T) {
	store, late := NewStore(Hub{APIServerURL: "a"}), 0
	store.OnChange(func(Hub, Hub) { store.OnChange(func(Hub, Hub) { late++ }) })
	store.Set(Hub{APIServerURL: "b"})
	assert.Zero(t, late, "a listener added during a change is called for the next one")
	store.Set(Hub{APIServerURL: "c"})
	assert.Equal(t, 1, late)
}

func TestStoreIsSafeForConcurrentUse(t *testing.T) {
	store := &Store{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			store.OnChange(func(Hub, Hub) {})
			store.Set(Hub{APIServerURL: fmt.Sprint(i)})
			_ = store.Get()
		})
	}
	wg.Wait()
	assert.NotEmpty(t, store.Get().APIServerURL)
}
