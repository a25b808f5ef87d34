// Package enqueue adds objects to the work queues of their controllers when something they depend on changes.
package enqueue

import (
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/controllers/guard"
)

// RepairDelay is the time between the change of an object that belongs to an owner and the pass over the owner. Several changes
// then cause one pass, and the caches contain the hub's own writes.
const RepairDelay = 2 * time.Second

// Enqueuer is the work queue of one kind.
type Enqueuer interface {
	EnqueueAfter(namespace, name string, duration time.Duration)
}

// Source is a watched kind.
type Source interface {
	Informer() cache.SharedIndexInformer
}

// Resolve returns the keys of the objects that depend on a watched object. It runs for every event, so it only reads indexes.
type Resolve[T any] func(object T) []types.NamespacedName

// OnAnyChange enqueues the keys that resolve returns when an object of the source is created, changed or deleted. Unlike wrangler's
// relatedresource, it does not use the rate limiter of the queue, so earlier failures of a key do not delay it, and resolve gets
// the deleted object.
func OnAnyChange[T any](source Source, target Enqueuer, resolve Resolve[T]) {
	changed := func(before, after any) { enqueue(target, resolve, 0, before, after) }
	watch(source, changed, func(object any) { changed(nil, object) })
}

// OnDamage enqueues the keys, after RepairDelay, when an object is changed or deleted. It ignores the creation of objects.
func OnDamage[T any](source Source, target Enqueuer, resolve Resolve[T]) {
	watch(source, func(before, after any) { enqueue(target, resolve, RepairDelay, before, after) }, nil)
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
	changed := func(before, after any) {
		b, was := before.(T)
		a, is := after.(T)
		if !was && !is {
			return
		}
		object := after
		if !is {
			object = before
		}
		defer guard.Recover(guard.Event, object, nil)
		handle(b, a)
	}
	watch(source, changed, func(object any) { changed(nil, object) })
}

// watch calls changed with both versions of a changed object, because other objects may have depended on the earlier one, and with nil as
// the second one of a deleted object. It calls added, unless that is nil, with a created object. Adding a handler fails only if the informer
// was stopped.
func watch(source Source, changed func(before, after any), added func(any)) {
	_, _ = source.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: added,
		UpdateFunc: func(before, after any) {
			if version(before) != version(after) {
				changed(before, after)
			}
		},
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			changed(object, nil)
		},
	})
}

func version(object any) string {
	if m, ok := object.(metav1.Object); ok {
		return m.GetResourceVersion()
	}
	return ""
}

// enqueue adds each key once, even if both versions of an object resolve to it.
func enqueue[T any](target Enqueuer, resolve Resolve[T], delay time.Duration, objects ...any) {
	added := map[types.NamespacedName]bool{}
	for _, object := range objects {
		typed, ok := object.(T)
		if !ok {
			continue
		}
		func() {
			defer guard.Recover(guard.Event, object, nil)
			for _, key := range resolve(typed) {
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
