package sim

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// source lists and watches the objects of one kind.
type source[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Follow calls see with every object of the kind, and whenever one changes, until ctx ends. An API server ends watches that
// cannot keep up; the informer begins them anew.
func Follow[T runtime.Object, L runtime.Object](ctx context.Context, of T, from source[L], see func(T)) error {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return from.List(ctx, options)
		},
		WatchFuncWithContext: from.Watch,
	}, of, 0, nil)
	tell := func(object any) {
		if seen, ok := object.(T); ok {
			see(seen)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(_, object any) { tell(object) }})
	if err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the API server did not list what is to be followed")
	}
	return nil
}
