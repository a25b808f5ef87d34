package index

import (
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/rancher/wrangler/v3/pkg/generic"
	corev1 "k8s.io/api/core/v1"
)

// AccountsByRequest finds the ServiceAccounts of agents by the key of their request.
var AccountsByRequest = Bucketed[*corev1.ServiceAccount]{"muster.fleet.cattle.io/by-request", accountByRequest}

// Bucketed is an index whose keys each have one object or a few. client-go keeps a Go map for each value of an index, which takes 300
// bytes with one object in it. So the values of this index are 256 buckets of keys, and Find compares the keys of the objects in a bucket.
type Bucketed[T generic.RuntimeMetaObject] struct {
	name string
	keys func(object T) []string
}

// indexable and indexed are the parts of a cache that the index needs.
type (
	indexable[T generic.RuntimeMetaObject] interface {
		AddIndexer(name string, keys generic.Indexer[T])
	}
	indexed[T generic.RuntimeMetaObject] interface {
		GetByIndex(name, key string) ([]T, error)
	}
)

// addTo adds the index to a cache.
func (b Bucketed[T]) addTo(cache indexable[T]) {
	cache.AddIndexer(b.name, func(object T) (buckets []string, _ error) {
		for _, key := range b.keys(object) {
			buckets = append(buckets, bucketOf(key))
		}
		return buckets, nil
	})
}

// Find returns the objects that have the key.
func (b Bucketed[T]) Find(cache indexed[T], key string) (found []T, err error) {
	all, err := cache.GetByIndex(b.name, bucketOf(key))
	for _, object := range all {
		if slices.Contains(b.keys(object), key) {
			found = append(found, object)
		}
	}
	return found, err
}

func bucketOf(key string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	return strconv.Itoa(int(h.Sum32() % 256))
}
