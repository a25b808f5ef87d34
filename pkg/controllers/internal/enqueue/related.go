// Package related brings objects back to their controllers when something they depend on changes.
package enqueue

import (
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// RepairDelay is how long after the change of something made for an owner the owner is looked at: several changes make
// one pass, and the caches have seen what the hub wrote itself.
const RepairDelay = 2 * time.Second

// Enqueuer is the work queue of one kind.
type Enqueuer interface {
	EnqueueAfter(namespace, name string, duration time.Duration)
}

// Source is a kind that is watched.
type Source interface {
	Informer() cache.SharedIndexInformer
}

// Resolve names the objects that depend on a watched one. It is called for every event, so it only looks into indexes.
type Resolve[T any] func(object T) []types.NamespacedName

// OnAnyChange enqueues what resolve names at once when an object of the source appears, changes or goes. Unlike
// wrangler's relatedresource it does not count as a failure of the enqueued key, so it is not delayed by its backoff, and
// it still has the object when that is deleted.
func OnAnyChange[T any](source Source, target Enqueuer, resolve Resolve[T]) {
	watch(source, func(objects ...any) { enqueue(target, resolve, 0, objects...) }, cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { enqueue(target, resolve, 0, object) },
	})
}

// OnDamage enqueues, RepairDelay later, what resolve names when an object that was there changes or goes. The
// appearance of an object is no damage.
func OnDamage[T any](source Source, target Enqueuer, resolve Resolve[T]) {
	watch(source, func(objects ...any) { enqueue(target, resolve, RepairDelay, objects...) }, cache.ResourceEventHandlerFuncs{})
}

// OnTransition is OnAnyChange for a kind that often changes in ways that bring nothing back: resolve sees the object before and
// after the event. Before is nil for one that appears, after for one that is gone.
func OnTransition[T v1.Object](source Source, target Enqueuer, resolve func(before, after T) []types.NamespacedName) {
	bring := func(before, after any) {
		b, was := before.(T)
		a, is := after.(T)
		if !was && !is {
			return
		}
		for _, key := range resolve(b, a) {
			target.EnqueueAfter(key.Namespace, key.Name, 0)
		}
	}
	watch(source, func(objects ...any) {
		if len(objects) == 1 {
			bring(objects[0], nil)
		} else {
			bring(objects[0], objects[1])
		}
	}, cache.ResourceEventHandlerFuncs{AddFunc: func(object any) { bring(nil, object) }})
}

// watch calls changed with both versions of a changed object: what depended on it may depend on something else now.
func watch(source Source, changed func(...any), funcs cache.ResourceEventHandlerFuncs) {
	funcs.UpdateFunc = func(before, after any) {
		if version(before) != version(after) {
			changed(before, after)
		}
	}
	funcs.DeleteFunc = func(object any) {
		if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = tombstone.Obj
		}
		changed(object)
	}
	// The error is of an informer that was stopped already; then there is nothing to bring back.
	_, _ = source.Informer().AddEventHandler(funcs)
}

func version(object any) string {
	if m, ok := object.(v1.Object); ok {
		return m.GetResourceVersion()
	}
	return ""
}

// enqueue adds each key once, however often the objects name it: a key that is added twice may be worked on twice.
func enqueue[T any](target Enqueuer, resolve Resolve[T], delay time.Duration, objects ...any) {
	added := map[types.NamespacedName]bool{}
	for _, object := range objects {
		typed, ok := object.(T)
		if !ok {
			continue
		}
		for _, key := range resolve(typed) {
			if !added[key] {
				added[key] = true
				target.EnqueueAfter(key.Namespace, key.Name, delay)
			}
		}
	}
}

// Made is an object that carries annotations.
type Made interface {
	GetAnnotations() map[string]string
}

// MadeFor resolves an object of a desired set to the owner of that kind it was made for.
func MadeFor(kind schema.GroupVersionKind) Resolve[Made] {
	return func(object Made) []types.NamespacedName {
		a := object.GetAnnotations()
		if a[apply.LabelGVK] != kind.String() {
			return nil
		}
		return []types.NamespacedName{{Namespace: a[apply.LabelNamespace], Name: a[apply.LabelName]}}
	}
}
