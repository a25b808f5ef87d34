package hub

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	lassocache "github.com/rancher/lasso/pkg/cache"
	"github.com/rancher/lasso/pkg/client"
	"github.com/rancher/lasso/pkg/controller"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// newTestController returns a controller of Clusters whose cache the test fills, and which is not started.
func newTestController(t *testing.T, handle controller.SharedControllerHandlerFunc) (*fairController, cache.Indexer) {
	t.Helper()
	clients, err := client.NewSharedClientFactory(&rest.Config{Host: "https://127.0.0.1:1"}, nil)
	require.NoError(t, err)
	factory := newFairFactory(lassocache.NewSharedCachedFactory(clients, nil))
	resource := fleet.SchemeGroupVersion.WithResource("clusters")
	c := factory.ForResourceKind(resource, clusterKind, true).(*fairController)
	assert.Same(t, c, factory.ForResourceKind(resource, clusterKind, true), "there is one controller of a kind")
	assert.Empty(t, factory.listeners, "nothing is watched before the informer is used")
	c.RegisterHandler(t.Context(), "test", handle)
	require.Len(t, factory.listeners, 1)
	assert.Same(t, factory.listeners[0], c.Informer(), "handlers that are added to the informer share the listener")
	return c, c.Informer().GetIndexer()
}

func start(t *testing.T, c *fairController, workers int) {
	t.Helper()
	require.NoError(t, c.Start(t.Context(), workers))
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(10 * time.Second):
		require.Fail(t, "timeout")
		panic("not reached")
	}
}

// One workspace has thousands of objects to reconcile, all its passes are as slow as they can be, and the objects of another one do not
// wait for them.
func TestFairControllerWorkspaces(t *testing.T) {
	const many, workers = 2000, 3
	begun, release := make(chan string), make(chan struct{})
	c, _ := newTestController(t, func(key string, _ runtime.Object) (runtime.Object, error) {
		select {
		case begun <- key:
		case <-t.Context().Done():
			return nil, nil
		}
		if strings.HasPrefix(key, "busy/") {
			select {
			case <-release:
			case <-t.Context().Done():
			}
		}
		return nil, nil
	})
	start(t, c, workers)
	for n := range many {
		c.EnqueueKey(fmt.Sprint("busy/", n))
	}
	for range workers {
		assert.Contains(t, receive(t, begun), "busy/")
	}
	for n := range 10 {
		c.EnqueueKey(fmt.Sprint("other/", n))
		assert.Equal(t, fmt.Sprint("other/", n), receive(t, begun), "no pass of the busy workspace has ended")
	}
	go func() {
		for range many {
			select {
			case release <- struct{}{}:
			case <-t.Context().Done():
			}
		}
	}()
	for range many - workers {
		assert.Contains(t, receive(t, begun), "busy/")
	}
	require.Eventually(t, func() bool { return c.waiting.Load() <= 2 }, 10*time.Second, time.Millisecond, "the other workers have ended")
	c.EnqueueKey("other/last")
	assert.Equal(t, "other/last", receive(t, begun))
}

func TestFairControllerRetries(t *testing.T) {
	failure := errors.New("failure")
	for name, row := range map[string]struct {
		err    error
		passes int
	}{
		"success":       {nil, 1},
		"an error":      {failure, 4}, // the handler fails three times
		"ignored error": {fmt.Errorf("wrapped: %w", controller.ErrIgnore), 1},
	} {
		t.Run(name, func(t *testing.T) {
			passes := make(chan int, 10)
			count := 0
			c, _ := newTestController(t, func(string, runtime.Object) (runtime.Object, error) {
				count++
				passes <- count
				if count > 3 {
					return nil, nil
				}
				return nil, row.err
			})
			start(t, c, 1)
			c.EnqueueKey("ns/a")
			for n := range row.passes {
				assert.Equal(t, n+1, receive(t, passes))
			}
			c.EnqueueKey("ns/end")
			assert.Equal(t, row.passes+1, receive(t, passes), "a key was retried")
			assert.Zero(t, c.queue.NumRequeues("ns/a"))
		})
	}
}

// lasso calls no handler for an object whose last finalizer it has seen removed, while the cache still contains it. It returns an error whose
// method Error panics.
func TestFairControllerDeletedObject(t *testing.T) {
	passes := make(chan string, 10)
	c, store := newTestController(t, func(key string, object runtime.Object) (runtime.Object, error) {
		passes <- key
		return object, nil
	})
	now := metav1.Now()
	require.NoError(t, store.Add(&fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "deleted", UID: "u", DeletionTimestamp: &now}}))
	start(t, c, 1)
	c.EnqueueKey("ns/deleted")
	assert.Equal(t, "ns/deleted", receive(t, passes))
	c.EnqueueKey("ns/deleted")
	c.EnqueueKey("ns/end")
	assert.Equal(t, "ns/end", receive(t, passes))
	assert.Zero(t, c.queue.NumRequeues("ns/deleted"), "this is no failure of the object")
}

func TestFairControllerBeforeStart(t *testing.T) {
	passes := make(chan string, 10)
	c, _ := newTestController(t, func(key string, _ runtime.Object) (runtime.Object, error) {
		passes <- key
		return nil, nil
	})
	assert.Equal(t, "fleet.cattle.io/v1alpha1, Kind=Cluster", c.name, "metrics have this name")
	c.EnqueueKey("ns/key")
	c.Enqueue("ns", "name")
	c.EnqueueAfter("ns", "soon", 0)
	c.EnqueueAfter("ns", "later", time.Millisecond)
	c.EnqueueAfter("ns", "never", time.Hour)
	assert.Empty(t, passes)
	start(t, c, 1)
	var handled []string
	for range 4 {
		handled = append(handled, receive(t, passes))
	}
	assert.ElementsMatch(t, []string{"ns/key", "ns/name", "ns/soon", "ns/later"}, handled)
}
