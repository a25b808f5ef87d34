// Package fakecache has a cache of the hub for unit tests of controllers.
package fakecache

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
)

// Cache answers as the hub's cache of objects of type T does, which has the indexes of package index. A test may change All, and its objects, at any
// time: each look-up works with a new cache of these objects. Several objects are returned in the order of All.
type Cache[T generic.RuntimeMetaObject] struct {
	All []T
	// Err is the error of each look-up.
	Err error

	indexers map[string]generic.Indexer[T]
}

// With returns a cache with these objects.
func With[T generic.RuntimeMetaObject](objects ...T) *Cache[T] { return &Cache[T]{All: objects} }

// AddIndexer implements generic.CacheInterface.
func (c *Cache[T]) AddIndexer(name string, keys generic.Indexer[T]) {
	if c.indexers == nil {
		c.indexers = map[string]generic.Indexer[T]{}
	}
	c.indexers[name] = keys
}

// Get implements generic.CacheInterface.
func (c *Cache[T]) Get(namespace, name string) (found T, err error) {
	current, err := c.current()
	if err != nil {
		return found, err
	}
	return current.Get(namespace, name)
}

// List implements generic.CacheInterface.
func (c *Cache[T]) List(namespace string, selector labels.Selector) ([]T, error) {
	current, err := c.current()
	if err != nil {
		return nil, err
	}
	found, err := current.List(namespace, selector)
	return c.inOrder(found), err
}

// GetByIndex implements generic.CacheInterface.
func (c *Cache[T]) GetByIndex(name, key string) ([]T, error) {
	current, err := c.current()
	if err != nil {
		return nil, err
	}
	found, err := current.GetByIndex(name, key)
	return c.inOrder(found), err
}

// inOrder gives objects the order of All: an indexer has none.
func (c *Cache[T]) inOrder(found []T) []T {
	place := func(object T) int {
		return slices.IndexFunc(c.All, func(o T) bool { return o.GetNamespace() == object.GetNamespace() && o.GetName() == object.GetName() })
	}
	slices.SortFunc(found, func(a, b T) int { return cmp.Compare(place(a), place(b)) })
	return found
}

func (c *Cache[T]) current() (*generic.Cache[T], error) {
	if c.Err != nil {
		return nil, c.Err
	}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	current := generic.NewCache[T](indexer, schema.GroupResource{Resource: fmt.Sprintf("%T", *new(T))})
	index.AddTo(current)
	for name, keys := range c.indexers {
		current.AddIndexer(name, keys)
	}
	for _, object := range c.All {
		if err := indexer.Add(object); err != nil {
			return nil, err
		}
	}
	return current, nil
}
