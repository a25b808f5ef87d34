package enqueue

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestChanges(t *testing.T) {
	target := &queue{}
	c := Changes[[]string]{Queue: target, MarkAll: func(changes *[]string) { *changes = []string{"all"} }}
	note := func(workspace, change string) {
		c.Note(workspace, func(changes *[]string) { *changes = append(*changes, change) })
	}
	pass := func(key string) (workspace string, changes []string, isPass bool) {
		isPass = c.HandleKey(key, func(w string, c []string) { workspace, changes = w, c })
		return workspace, changes, isPass
	}
	for range 10_000 {
		note("a", "x")
	}
	note("b", "y")
	assert.Equal(t, []string{"a/* in 0s", "b/* in 0s"}, target.added, "one pass for each workspace")

	_, _, isPass := pass("a/app")
	assert.False(t, isPass, "the key of an object")
	workspace, changes, isPass := pass("a/*")
	assert.True(t, isPass)
	assert.Equal(t, "a", workspace)
	assert.Len(t, changes, 10_000)
	_, changes, isPass = pass("a/*")
	assert.True(t, isPass)
	assert.Empty(t, changes, "each change is handled once")

	note("a", "z")
	assert.Len(t, target.added, 3, "the next change needs another pass")
	_, changes, _ = pass("a/*")
	assert.Equal(t, []string{"z"}, changes)
	_, changes, _ = pass("b/*")
	assert.Equal(t, []string{"y"}, changes)
	assert.Empty(t, c.byWorkspace)

	note("a", "x")
	target.added = nil
	assert.Panics(t, func() { c.HandleKey("a/*", func(string, []string) { panic("out of range") }) })
	assert.Empty(t, target.added, "the queue repeats the pass, with backoff")
	_, changes, _ = pass("a/*")
	assert.Equal(t, []string{"all"}, changes, "the changes of a pass that panicked are not lost")
	assert.Empty(t, c.byWorkspace)
}

func TestEarlierVersions(t *testing.T) {
	type set = map[string]string
	equal := maps.Equal[set, set]
	var v EarlierVersions[set]
	for range 10_000 {
		v.Add("a", set{"env": "dev"}, 1, equal)
		v.Add("a", set{"env": "prod"}, 1, equal)
		v.Add("b", set{}, 0, equal)
	}
	assert.Equal(t, map[string][]set{"a": {{"env": "dev"}, {"env": "prod"}}, "b": {{}}}, v.ByName)
	assert.False(t, v.All)

	for n := range maxVersions {
		v.Add("a", set{"env": fmt.Sprint(n)}, 1, equal)
	}
	assert.True(t, v.All, "one object has too many versions")
	assert.Empty(t, v.ByName)
	v.Add("a", set{}, 0, equal)
	assert.Empty(t, v.ByName)

	v = EarlierVersions[set]{}
	for n := range maxSize / 2 {
		v.Add(fmt.Sprint(n), set{}, 1, equal)
	}
	assert.False(t, v.All)
	v.Add("one more", set{}, 0, equal)
	assert.True(t, v.All, "together the objects have too many")
}
