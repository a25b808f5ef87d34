package enqueue

import (
	"slices"
	"strings"
	"sync"
)

// Changes has the changes in each workspace since the last pass over the workspace. It is for changes with many dependents, or whose dependents
// are found by matching selectors with all objects of a workspace. An event handler must not do that: it gets the events of all workspaces one
// after the other, from a buffer without a limit, so that the changes of one tenant would delay the events of all. The handler notes the change,
// in constant time, and the pass finds the dependents.
//
// The workers of Queue, in which workspaces take turns, run the passes. Queue has one key for each workspace with changes, which is not the key
// of an object, so that a workspace has one pass at a time, with all changes until then.
type Changes[T any] struct {
	Queue Enqueuer
	// MarkAll sets changes on which every object of the workspace may depend.
	MarkAll func(changes *T)

	mu          sync.Mutex
	byWorkspace map[string]*T
}

// passName is the name in the key of a pass. No object has it.
const passName = "*"

// Note calls note with the changes of a workspace, and enqueues its pass.
func (c *Changes[T]) Note(workspace string, note func(changes *T)) {
	c.mu.Lock()
	changes, isEnqueued := c.byWorkspace[workspace]
	if !isEnqueued {
		if c.byWorkspace == nil {
			c.byWorkspace = map[string]*T{}
		}
		changes = new(T)
		c.byWorkspace[workspace] = changes
	}
	note(changes)
	c.mu.Unlock()
	if !isEnqueued {
		c.Queue.EnqueueAfter(workspace, passName, 0)
	}
}

// Pass calls handle with the changes of the workspace that key is the pass of, and drops them. It returns false if key is the key of an object.
// If handle panics, the queue repeats the pass; which dependents were not enqueued is unknown then, so the repetition enqueues all.
func (c *Changes[T]) Pass(key string, handle func(workspace string, changes T)) (isPass bool) {
	workspace, isPass := strings.CutSuffix(key, "/"+passName)
	if !isPass {
		return false
	}
	changes := c.take(workspace)
	panicked := true
	defer func() {
		if panicked {
			c.markAll(workspace)
		}
	}()
	handle(workspace, changes)
	panicked = false
	return true
}

// take removes and returns the changes of a workspace.
func (c *Changes[T]) take(workspace string) (changes T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if noted := c.byWorkspace[workspace]; noted != nil {
		changes = *noted
		delete(c.byWorkspace, workspace)
	}
	return changes
}

// markAll marks the changes of a workspace whose pass the queue repeats. It does not enqueue the pass, which would repeat it without backoff.
func (c *Changes[T]) markAll(workspace string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byWorkspace[workspace] == nil {
		c.byWorkspace[workspace] = new(T)
	}
	c.MarkAll(c.byWorkspace[workspace])
}

// EarlierVersions has the versions that objects had before they changed, by the name of the object. The caches have only the last version, and
// an object that depended on an earlier one depends on the change as well.
type EarlierVersions[V any] struct {
	ByName map[string][]V
	// All is set when there are more versions than are kept. ByName is then empty, and every object may depend on the changes.
	All bool

	size int
}

const (
	// maxSize limits what is kept for a workspace, so that no tenant can fill the memory of the hub. The unit is a label, or a value of a selector.
	maxSize = 10_000
	// maxVersions limits the versions of one object, because Add compares a version with each of them.
	maxVersions = 8
)

// Add keeps a version of an object unless an equal one is kept.
func (v *EarlierVersions[V]) Add(name string, version V, size int, equal func(a, b V) bool) {
	if v.All || slices.ContainsFunc(v.ByName[name], func(kept V) bool { return equal(kept, version) }) {
		return
	}
	if v.size += 1 + size; v.size > maxSize || len(v.ByName[name]) == maxVersions {
		v.MarkAll()
		return
	}
	if v.ByName == nil {
		v.ByName = map[string][]V{}
	}
	v.ByName[name] = append(v.ByName[name], version)
}

// MarkAll drops the versions: every object may depend on the changes.
func (v *EarlierVersions[V]) MarkAll() { v.ByName, v.All = nil, true }
