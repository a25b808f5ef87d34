package cluster

import (
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/shard"
)

// shardOf a Cluster that is gone does not matter: all hubs forget it.
func shardOf(_ string, cluster *fleet.Cluster) shard.Shard {
	if cluster == nil {
		return 0
	}
	return shard.OfCluster(cluster)
}

// onOthers sees the Clusters that another hub looks after.
func (h *handler) onOthers(key string, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	if cluster == nil {
		h.forget(key)
		return nil, nil
	}
	for _, step := range h.steps {
		if observer, observes := step.(Observer); observes {
			observer.Observe(cluster)
		}
	}
	return cluster, nil
}
