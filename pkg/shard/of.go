// Package shard lets several processes share one hub's work. The work is cut into shards, each of which has a Lease; a
// process works on the objects of those it holds, and on no other. Which shard an object is of follows from what never
// changes of it.
package shard

import (
	"hash/fnv"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Count is how many shards there are, and so how many processes can share the work.
const Count = 16

// Shard is a part of the work, from 0 to Count-1.
type Shard int

// Set is some of the shards.
type Set [Count]bool

// Has says whether the shard is one of them.
func (s Set) Has(shard Shard) bool { return s[shard] }

// Of is the shard of an object, of no namespace where it has none.
func Of(namespace, name string) Shard { return hash("object", namespace, name) }

// OfRequest is the shard of a request: all requests of one identity are of one shard, for they are judged one after another.
func OfRequest(request *fleet.ClusterRegistration) Shard {
	return hash("identity", request.Namespace, request.Spec.ClientID)
}

// OfCluster is the shard of a Cluster. Its name never changes, and its identity does, for the hub makes one where there is
// none. Those that a management server has for one cluster are of one shard: the farewell of the one must not meet the import
// of the other on the member.
func OfCluster(cluster *fleet.Cluster) Shard {
	if name := cluster.Labels[fleet.ManagementClusterLabel]; name != "" {
		return hash("managed", name)
	}
	return Of(cluster.Namespace, cluster.Name)
}

// Single is the shard of the work that there is once: what is in no namespace, and has no slash in its name, is no object.
func Single(task string) Shard { return hash("task", task) }

// hash must never change between two processes that share: the Leases say nothing about which objects a shard has.
func hash(parts ...string) Shard {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write([]byte(part))
		_, _ = h.Write([]byte{0}) // ends a part: no name has it
	}
	const half = 32
	sum := h.Sum64()
	return Shard((sum ^ sum>>half) % Count)
}
