// Package enqueue adds objects to the work queues of their controllers when something they depend on changes.
package enqueue

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/generic"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/controllers/guard"
)

// Enqueuer is the work queue of one kind.
type Enqueuer interface {
	EnqueueAfter(namespace, name string, duration time.Duration)
}

// All enqueues the objects of a cache, only those that are wanted if wanted is not nil.
func All[T generic.RuntimeMetaObject](objects generic.CacheInterface[T], queue Enqueuer, wanted func(T) bool) {
	all, _ := objects.List(metav1.NamespaceAll, labels.Everything()) // fails only if the selector is invalid
	for _, object := range all {
		if wanted == nil || wanted(object) {
			queue.EnqueueAfter(object.GetNamespace(), object.GetName(), 0)
		}
	}
}

// Source is a watched kind.
type Source interface {
	Informer() cache.SharedIndexInformer
}

// Metadata is the Source of a kind of which the hub caches only metadata.
type Metadata struct{ cache.SharedIndexInformer }

// Informer returns the informer.
func (m Metadata) Informer() cache.SharedIndexInformer { return m.SharedIndexInformer }

// Resolve returns the keys of the objects that depend on a watched object. It runs for every event, so it only reads indexes.
type Resolve[T any] func(object T) []types.NamespacedName

// OnAnyChange enqueues the keys that resolve returns when an object of the source is created, changed or deleted. Unlike wrangler's
// relatedresource, it does not use the rate limiter of the queue, so earlier failures of a key do not delay it, and resolve gets
// the deleted object.
func OnAnyChange[T metav1.Object](source Source, target Enqueuer, resolve Resolve[T]) {
	watch(source, EventHandler[T]{
		Added:   func(object T, _ bool) { enqueue(target, resolve, 0, object) },
		Changed: func(before, after T) { enqueue(target, resolve, 0, before, after) },
		Deleted: func(object T) { enqueue(target, resolve, 0, object) },
	})
}

// OnDamage enqueues the keys, after a delay, when an object is changed or deleted. It ignores the creation of objects.
func OnDamage[T metav1.Object](source Source, target Enqueuer, delay time.Duration, resolve Resolve[T]) {
	watch(source, EventHandler[T]{
		Changed: func(before, after T) { enqueue(target, resolve, delay, before, after) },
		Deleted: func(object T) { enqueue(target, resolve, delay, object) },
	})
}

// OnTransition is OnAnyChange for a kind that often changes in ways that no other object depends on: resolve gets the object before
// and after the event. before is nil for a creation, after for a deletion.
func OnTransition[T metav1.Object](source Source, target Enqueuer, resolve func(before, after T) []types.NamespacedName) {
	OnEvent(source, func(before, after T) {
		for _, key := range resolve(before, after) {
			target.EnqueueAfter(key.Namespace, key.Name, 0)
		}
	})
}

// OnEvent calls handle with the object before and after each event, as OnTransition does.
func OnEvent[T metav1.Object](source Source, handle func(before, after T)) {
	var none T
	watch(source, EventHandler[T]{
		Added:   func(object T, _ bool) { handle(none, object) },
		Changed: handle,
		Deleted: func(object T) { handle(object, none) },
	})
}

// watch adds the handler, which fails only if the informer was stopped.
func watch(source Source, handler cache.ResourceEventHandler) {
	_, _ = source.Informer().AddEventHandler(handler)
}

// EventHandler calls functions, any of which may be nil, with the typed objects of events. client-go calls them one after the other, for the
// objects of all workspaces, so they must be quick: they enqueue objects that an index finds, and note changes that have to be matched with many
// objects.
type EventHandler[T metav1.Object] struct {
	// Added gets a new object and, with atStart, each object that exists when the handler is added.
	Added func(object T, atStart bool)
	// Changed gets both versions of a changed object: other objects may have depended on the earlier one.
	Changed func(before, after T)
	// Deleted gets a deleted object, possibly an older version of it.
	Deleted func(object T)
}

// OnAdd is called for a new object, and at the start for each that exists.
func (h EventHandler[T]) OnAdd(object any, atStart bool) {
	defer guard.Recover(guard.Event, object, nil)
	if o, ok := object.(T); ok && h.Added != nil {
		h.Added(o, atStart)
	}
}

// OnUpdate is called for a changed object. When the informer has to list again, it is called for unchanged ones too.
func (h EventHandler[T]) OnUpdate(before, after any) {
	defer guard.Recover(guard.Event, after, nil)
	b, okBefore := before.(T)
	a, okAfter := after.(T)
	if okBefore && okAfter && h.Changed != nil && b.GetResourceVersion() != a.GetResourceVersion() {
		h.Changed(b, a)
	}
}

// OnDelete is called for a deleted object, possibly with an older version of it.
func (h EventHandler[T]) OnDelete(object any) {
	defer guard.Recover(guard.Event, object, nil)
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if o, ok := object.(T); ok && h.Deleted != nil {
		h.Deleted(o)
	}
}

// enqueue adds each key once, even if both versions of an object resolve to it.
func enqueue[T metav1.Object](target Enqueuer, resolve Resolve[T], delay time.Duration, objects ...T) {
	added := map[types.NamespacedName]bool{}
	for _, object := range objects {
		func() {
			defer guard.Recover(guard.Event, object, nil)
			for _, key := range resolve(object) {
				if !added[key] {
					added[key] = true
					target.EnqueueAfter(key.Namespace, key.Name, delay)
				}
			}
		}()
	}
}

// OwnerOf resolves an object of a desired set to its owner, if that is of the kind.
func OwnerOf(kind schema.GroupVersionKind) Resolve[metav1.Object] {
	return func(object metav1.Object) []types.NamespacedName {
		a := object.GetAnnotations()
		if a[apply.LabelGVK] != kind.String() {
			return nil
		}
		return []types.NamespacedName{{Namespace: a[apply.LabelNamespace], Name: a[apply.LabelName]}}
	}
}

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

// HandleKey calls handle with the changes of the workspace that key is the pass of, and drops them. It returns false if key is the key of an object.
// If handle panics, the queue repeats the pass; which dependents were not enqueued is unknown then, so the repetition enqueues all.
func (c *Changes[T]) HandleKey(key string, handle func(workspace string, changes T)) (isPass bool) {
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

// ChangedNames has the names of objects that have changed.
type ChangedNames struct{ EarlierVersions[struct{}] }

// Add adds the name of an object.
func (c *ChangedNames) Add(name string) {
	c.EarlierVersions.Add(name, struct{}{}, 0, func(_, _ struct{}) bool { return true })
}
