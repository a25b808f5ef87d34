package liveness

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

const (
	// instanceIntervals is the number of intervals without a heartbeat after which an instance is forgotten.
	instanceIntervals = 3
	// maxInstances limits the instances that are kept for one Cluster.
	maxInstances = 8
)

// instances are the agent processes that have recently sent heartbeats with one identity. A restarted agent is a new instance, and the
// previous instance never sends a heartbeat again. So if two instances send heartbeats in turn, two agents run at the same time.
type instances struct {
	recent  []instance
	current string // the name of the instance that sent the last heartbeat
	clones  bool   // an earlier instance has sent a heartbeat after a later one
}

type instance struct {
	name     string
	lastSeen time.Time
}

// add records a heartbeat. Fleet's agents report no instance.
func (i *instances) add(name string, now time.Time) {
	if name == "" {
		return
	}
	known := slices.IndexFunc(i.recent, func(other instance) bool { return other.name == name })
	if known >= 0 {
		i.clones = i.clones || name != i.current
		i.recent[known].lastSeen = now
	} else {
		if len(i.recent) == maxInstances {
			// Replace the newest: if more clones than maxInstances take turns, replacing the oldest would always replace the next.
			i.recent = i.recent[:maxInstances-1]
		}
		i.recent = append(i.recent, instance{name, now})
	}
	i.current = name
}

// expire forgets instances that have sent no heartbeat for a while. With a single instance left there are no clones.
func (i *instances) expire(now time.Time, interval time.Duration) {
	i.recent = slices.DeleteFunc(i.recent, func(other instance) bool { return now.Sub(other.lastSeen) >= instanceIntervals*interval })
	i.clones = i.clones && len(i.recent) > 1
}

// expectInstances creates the instances of a Cluster. After a restart of the hub the condition decides whether there are clones, until one of
// them has sent no heartbeat for a while. The caller holds the lock.
func (d *Detector) expectInstances(key types.NamespacedName, cluster *fleet.Cluster, now time.Time) {
	if d.instances[key] != nil {
		return
	}
	i := &instances{}
	if fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionRegistered).Reason == fleet.ReasonCloneDetected {
		i.recent, i.clones = []instance{{"", now}}, true
	}
	d.instances[key] = i
}

// observeInstance records the instance of a Cluster's agent; isNew reports a heartbeat since the last call. The caller holds the lock, and
// has called expectInstances before.
func (d *Detector) observeInstance(key types.NamespacedName, instance string, isNew bool, interval time.Duration, now time.Time) {
	i := d.instances[key]
	if isNew || instance != i.current { // two instances may send heartbeats within a second
		i.add(instance, now)
	}
	i.expire(now, interval)
}

// HasClones reports whether two agents send heartbeats with the identity of the Cluster.
func (d *Detector) HasClones(cluster *fleet.Cluster) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.instances[types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}]
	return i != nil && i.clones
}
