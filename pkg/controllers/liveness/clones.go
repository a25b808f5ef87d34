package liveness

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

const (
	// cloneIntervals is for how many intervals an agent must be silent until it no longer counts as a second one.
	cloneIntervals = 3
	// mostInstances bounds what is remembered of one Cluster, whatever its agents say.
	mostInstances = 8
)

// instances are the processes that have lately checked in with one identity. An agent that is started again is another
// instance, and its predecessor is never heard of again. So one that comes back after another was heard is one of two
// agents that are there at the same time.
type instances struct {
	seen    map[string]time.Time // when each was heard last
	current string               // the one that was heard last of all
	clones  bool                 // one of them has come back
}

// heard takes note of a check-in. An instance without a name is of a release that gives itself none.
func (i *instances) heard(instance string, now time.Time) {
	if instance == "" {
		return
	}
	if i.seen == nil {
		i.seen = map[string]time.Time{}
	}
	_, known := i.seen[instance]
	i.clones = i.clones || known && instance != i.current
	if !known && len(i.seen) == mostInstances {
		delete(i.seen, i.oldest())
	}
	i.seen[instance], i.current = now, instance
}

func (i *instances) oldest() (oldest string) {
	for name, at := range i.seen {
		if oldest == "" || at.Before(i.seen[oldest]) {
			oldest = name
		}
	}
	return oldest
}

// fade forgets those who have not been heard for a while. When a single one is left, there are no clones any more.
func (i *instances) fade(now time.Time, interval time.Duration) {
	maps.DeleteFunc(i.seen, func(_ string, at time.Time) bool { return now.Sub(at) >= cloneIntervals*interval })
	i.clones = i.clones && len(i.seen) > 1
}

// known is where to begin after a restart of the hub: what the Cluster said before holds until one of the two, whoever it
// is, has been silent for long enough.
func knownBefore(cluster *fleet.Cluster, now time.Time) *instances {
	i := &instances{}
	if result.Get(cluster.Status.Conditions, fleet.ConditionRegistered).Reason == fleet.ReasonCloneDetected {
		i.seen, i.clones = map[string]time.Time{"": now}, true
	}
	return i
}

// noteInstance keeps the instances of a Cluster; beaten says that its agent has checked in since the last look. The caller
// holds the lock.
func (s *Step) noteInstance(key types.NamespacedName, cluster *fleet.Cluster, beaten bool, interval time.Duration) {
	i, now, instance := s.instances[key], s.Clock.Now(), cluster.Status.Agent.Instance
	if i == nil {
		i = knownBefore(cluster, now)
		s.instances[key] = i
	}
	if beaten || instance != i.current { // two may beat within one second
		i.heard(instance, now)
	}
	i.fade(now, interval)
}

// HasClones says whether two agents check in for the Cluster.
func (s *Step) HasClones(cluster *fleet.Cluster) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}]
	return i != nil && i.clones
}
