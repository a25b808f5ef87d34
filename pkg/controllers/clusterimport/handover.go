package clusterimport

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/shard"
)

// handOver ends the calls for the Clusters of these shards, and forgets what is known of them: another hub goes on with them.
// It makes a call again that was cut off.
func (s *Step) handOver(left shard.Set) {
	isTheirs := func(key types.NamespacedName) bool {
		cluster, err := s.clusters.Get(key.Namespace, key.Name)
		return err != nil || left.Has(shard.OfCluster(cluster))
	}
	s.pool.handOver(isTheirs)
	s.prepared.dropAll(isTheirs)
}

// handOver returns when the calls have ended.
func (p *pool) handOver(isTheirs func(cluster types.NamespacedName) bool) {
	p.mu.Lock()
	theirs := map[types.NamespacedName]*attempt{}
	for key, a := range p.attempts {
		if isTheirs(clusterOf(key)) {
			theirs[key] = a
		}
	}
	p.mu.Unlock()
	for _, a := range theirs {
		a.cancel()
	}
	for key, a := range theirs {
		<-a.ended
		p.forget(key)
	}
}
