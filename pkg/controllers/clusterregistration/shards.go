package clusterregistration

import (
	"github.com/rancher/wrangler/v3/pkg/kv"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/controllers/related"
	"github.com/muster-fleet/muster/pkg/shard"
)

// shardOf a request that is gone follows from its key, which is all that is left: to take back what it was given needs nothing
// of the hub that gave it. What that one makes while it does not know yet brings the request back.
func shardOf(key string, request *fleet.ClusterRegistration) shard.Shard {
	if request == nil {
		return shard.Of(kv.RSplit(key, "/"))
	}
	return shard.OfRequest(request)
}

func shardOfSecret(key string, _ *corev1.Secret) shard.Shard { return shard.Of(kv.RSplit(key, "/")) }

// onTake looks at all that an earlier holder of a shard may have left half done, or was to look at later; also at requests
// that are gone, by what was made for them.
func (h *handler) onTake(made []related.Source) {
	guard.OnTake(h.Shards,
		func() ([]*fleet.ClusterRegistration, error) { return h.cache.List("", labels.Everything()) }, shard.OfRequest,
		func(namespace, name string) { h.requests.EnqueueAfter(namespace, name, 0) })
	guard.OnTake(h.Shards,
		func() ([]*corev1.Secret, error) {
			return h.secrets.List(h.RegistrationNamespace(), labels.Everything())
		},
		func(secret *corev1.Secret) shard.Shard { return shard.Of(secret.Namespace, secret.Name) },
		func(namespace, name string) { h.Core.Secret().EnqueueAfter(namespace, name, 0) })
	h.Shards.OnTake(func(taken shard.Set) {
		for _, source := range made {
			h.takeOrphans(source, taken)
		}
	})
}

func (h *handler) takeOrphans(source related.Source, taken shard.Set) {
	for _, object := range source.Informer().GetStore().List() {
		m, ok := object.(related.Made)
		if !ok {
			continue
		}
		for _, key := range h.orphanOf(m) {
			if taken.Has(shard.Of(key.Namespace, key.Name)) {
				h.requests.EnqueueAfter(key.Namespace, key.Name, 0)
			}
		}
	}
}
