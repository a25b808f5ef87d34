package hub

import (
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// texts keeps equal resources of all Bundles in memory once: the Bundles of ten thousand agents have the same resources. A
// resource stays in memory as long as a cached Bundle has it.
type texts struct {
	mu   sync.Mutex
	held map[types.NamespacedName][]unique.Handle[string]
}

// share is the transform of the informer of Bundles.
func (t *texts) share(object any) (any, error) {
	b, ok := object.(*fleet.Bundle)
	if !ok {
		return object, nil
	}
	handles := make([]unique.Handle[string], 0, len(b.Spec.Resources))
	for i := range b.Spec.Resources {
		handle := unique.Make(b.Spec.Resources[i].Content)
		b.Spec.Resources[i].Content = handle.Value()
		handles = append(handles, handle)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held = map[types.NamespacedName][]unique.Handle[string]{}
	}
	t.held[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}] = handles
	return b, nil
}

// forget drops the resources of a deleted Bundle.
func (t *texts) forget(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if b, ok := object.(*fleet.Bundle); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.held, types.NamespacedName{Namespace: b.Namespace, Name: b.Name})
	}
}
