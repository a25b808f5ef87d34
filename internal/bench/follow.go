package bench

import (
	"context"
	"errors"
	"sync"

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

// follow calls see with every object of the kind, and whenever one changes, until ctx ends. An API server ends watches that
// cannot keep up; the informer begins them anew.
func follow[T runtime.Object, L runtime.Object](ctx context.Context, of T, from source[L], see func(T)) error {
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

// signals tell of things by name, each once.
type signals struct {
	mu     sync.Mutex
	byName map[string]chan struct{}
	given  map[string]bool
}

// of is closed when something of that name has been given.
func (s *signals) of(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName == nil {
		s.byName, s.given = map[string]chan struct{}{}, map[string]bool{}
	}
	if s.byName[name] == nil {
		s.byName[name] = make(chan struct{})
	}
	return s.byName[name]
}

func (s *signals) give(name string) {
	signal := s.of(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.given[name] {
		s.given[name] = true
		close(signal)
	}
}
