package cluster

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/shard"
)

// tenure is since when this hub looks after the Clusters of each shard. A hub that shares the work may have run for days when it
// takes over from one that ended in the midst of a farewell.
type tenure struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	since [shard.Count]time.Time // zero, where it does not
}

// newTenure begins now where the work is not shared.
func newTenure(c clock.PassiveClock, shards *shard.Gate) *tenure {
	t := &tenure{clock: c}
	shards.OnTake(t.begin)
	shards.OnLeave(t.end)
	if !shards.Shares() {
		for s := range t.since {
			t.since[s] = c.Now()
		}
	}
	return t
}

func (t *tenure) begin(taken shard.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.since {
		if taken[s] {
			t.since[s] = t.clock.Now() // whatever stands there: word of an earlier take may come after its end
		}
	}
}

func (t *tenure) end(left shard.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.since {
		if left[s] {
			t.since[s] = time.Time{}
		}
	}
}

// of is since when a Cluster is looked after. The first look at one may come before the word that its shard was taken.
func (t *tenure) of(cluster *fleet.Cluster) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := shard.OfCluster(cluster)
	if t.since[s].IsZero() {
		t.since[s] = t.clock.Now()
	}
	return t.since[s]
}
