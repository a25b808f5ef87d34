package guard

import (
	"github.com/rancher/wrangler/v3/pkg/generic"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/pkg/shard"
)

// Own is the handler for the objects that are this hub's, where several share the work. others, which may be nil, sees the
// rest: it may note what it has to know of them, and sends no request. of is the shard of an object, or of the key of one that
// is gone.
func Own[T runtime.Object](g *shard.Gate, of func(key string, object T) shard.Shard, own, others generic.ObjectHandler[T]) generic.ObjectHandler[T] {
	return func(key string, object T) (T, error) {
		leave, mine := g.Enter(of(key, object))
		switch {
		case mine:
			defer leave()
			return own(key, object)
		case others != nil:
			return others(key, object)
		}
		return object, nil
	}
}

// OnTake has the objects of a kind looked at whose shards have become this hub's.
func OnTake[T metav1.Object](g *shard.Gate, list func() ([]T, error), of func(T) shard.Shard, enqueue func(namespace, name string)) {
	g.OnTake(func(taken shard.Set) {
		all, err := list()
		if err != nil {
			return // a cache's list fails only on indexes of another name
		}
		for _, object := range all {
			if taken.Has(of(object)) {
				enqueue(object.GetNamespace(), object.GetName())
			}
		}
	})
}
