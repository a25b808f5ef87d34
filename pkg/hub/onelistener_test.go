package hub

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// listened is a cache that records its listeners. The test sends the events.
type listened struct {
	cache.SharedIndexInformer
	listeners []cache.ResourceEventHandler
}

func (l *listened) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	l.listeners = append(l.listeners, handler)
	return nil, nil
}

func TestListener(t *testing.T) {
	source := &listened{SharedIndexInformer: cache.NewSharedIndexInformer(nil, nil, 0, cache.Indexers{})}
	l := &oneListener{SharedIndexInformer: source}
	require.NoError(t, l.listen())
	assert.Empty(t, source.listeners, "without a handler there is no listener")

	var events []string
	name := func(object any) string { return object.(metav1.Object).GetName() }
	handler := func(n int) cache.ResourceEventHandler {
		note := func(event string, objects ...any) {
			for _, object := range objects {
				event += " " + name(object)
			}
			events = append(events, fmt.Sprintf("%d: %s", n, event))
		}
		return cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    func(object any, isInInitialList bool) { note(fmt.Sprint("added ", isInInitialList), object) },
			UpdateFunc: func(before, after any) { note("changed", before, after) },
			DeleteFunc: func(object any) { note("deleted", object) },
		}
	}
	for n := range 2 {
		_, err := l.AddEventHandler(handler(n))
		require.NoError(t, err)
	}
	assert.Empty(t, source.listeners, "more handlers may be added")
	require.NoError(t, l.listen())
	require.NoError(t, l.listen())
	require.Len(t, source.listeners, 1, "all handlers share a listener")

	object := func(name string) any { return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	source.listeners[0].OnAdd(object("a"), true)
	source.listeners[0].OnUpdate(object("a"), object("b"))
	source.listeners[0].OnDelete(object("b"))
	assert.Equal(t, []string{"0: added true a", "1: added true a", "0: changed a b", "1: changed a b", "0: deleted b", "1: deleted b"}, events)

	_, err := l.AddEventHandler(handler(2))
	require.NoError(t, err)
	assert.Len(t, source.listeners, 2, "a later handler needs the events of all objects in the cache")
}
