package deploy

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

// live are the objects of releases as the cluster has them: one watch for each kind that a release has, of the objects that
// Helm made.
type live struct {
	ctx     context.Context // of the run
	client  dynamic.Interface
	changed func(namespace, name string) // a release
	wait    sync.WaitGroup

	mu    sync.Mutex
	kinds map[schema.GroupVersionResource]*kind
}

type kind struct {
	store  cache.Store
	synced func() bool
}

func newLive(ctx context.Context, client dynamic.Interface, changed func(namespace, name string)) *live {
	return &live{ctx: ctx, client: client, changed: changed, kinds: map[schema.GroupVersionResource]*kind{}}
}

// watch sees to it that all kinds of the objects are watched, and says whether all of them are known.
func (l *live) watch(objects []release.Object) (known bool) {
	known = true
	for _, o := range objects {
		known = l.kind(o.Resource).synced() && known
	}
	return known
}

func (l *live) kind(resource schema.GroupVersionResource) *kind {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.kinds[resource]; k != nil {
		return k
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: l.listerWatcher(resource),
		ObjectType:    &unstructured.Unstructured{},
		Handler:       l.handler(),
		Transform:     withoutManagedFields,
	})
	k := &kind{store: store, synced: controller.HasSynced}
	l.kinds[resource] = k
	if l.ctx.Err() == nil {
		l.wait.Go(func() { controller.RunWithContext(l.ctx) })
	}
	return k
}

func (l *live) listerWatcher(resource schema.GroupVersionResource) cache.ListerWatcher {
	const ofHelm = release.ManagedByLabel + "=" + release.ManagedByHelm
	client := l.client.Resource(resource)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = ofHelm
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = ofHelm
			return transport.Watch(ctx, o, client.Watch)
		},
	}
}

func (l *live) handler() cache.ResourceEventHandler {
	tell := func(object any) {
		if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = tombstone.Obj
		}
		if accessor, err := meta.Accessor(object); err == nil {
			marks := accessor.GetAnnotations()
			l.changed(marks[release.NamespaceAnnotation], marks[release.NameAnnotation])
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { tell(o) },
		UpdateFunc: func(before, o any) { tell(before); tell(o) }, // it may have changed hands
		DeleteFunc: func(o any) { tell(o) },
	}
}

// get is the object as the watch has it, or nil.
func (l *live) get(o release.Object) *unstructured.Unstructured {
	found, exists, err := l.kind(o.Resource).store.GetByKey(cache.NewObjectName(o.Desired.GetNamespace(), o.Desired.GetName()).String())
	if err != nil || !exists {
		return nil
	}
	object, _ := found.(*unstructured.Unstructured)
	return object
}

func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}
