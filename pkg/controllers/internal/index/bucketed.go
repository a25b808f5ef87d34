package index

import (
	"hash/maphash"
	"slices"
	"strconv"

	"github.com/rancher/wrangler/v3/pkg/generic"
)

// Bucketed is an index whose keys each have one object or a few. client-go keeps a Go map for each value of an index, which takes 300
// bytes with one object in it. So the values of this index are 256 buckets of keys, and Find compares the keys of the objects in a bucket.
type Bucketed[T generic.RuntimeMetaObject] struct {
	// Name is the name of the index in the cache.
	Name string
	// Keys returns the keys of an object. It is also called for each object of a bucket when one is looked up.
	Keys func(object T) []string
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

// AddTo adds the index to a cache.
func (b Bucketed[T]) AddTo(cache indexable[T]) {
	cache.AddIndexer(b.Name, func(object T) (buckets []string, _ error) {
		for _, key := range b.Keys(object) {
			buckets = append(buckets, Bucket(key))
		}
		return buckets, nil
	})
}

// Find returns the objects that have the key.
func (b Bucketed[T]) Find(cache indexed[T], key string) (found []T, err error) {
	all, err := cache.GetByIndex(b.Name, Bucket(key))
	for _, object := range all {
		if slices.Contains(b.Keys(object), key) {
			found = append(found, object)
		}
	}
	return found, err
}

// seed is not known outside of the process, so nobody can choose keys that all have the same bucket.
var seed = maphash.MakeSeed()

// Bucket returns the value of an index under which an object with the key is found.
func Bucket(key string) string { return strconv.Itoa(int(maphash.String(seed, key) % 256)) }
