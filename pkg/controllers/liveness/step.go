package liveness

import (
	"context"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// Step is the contribution of this package to the status of a Cluster: condition Connected.
type Step struct {
	*app.Context
	clusters enqueue.Enqueuer
	audible  *Audible
	moments  workqueue.TypedDelayingInterface[types.NamespacedName]
	running  sync.WaitGroup

	mu        sync.Mutex
	beats     map[types.NamespacedName]beat
	instances map[types.NamespacedName]*instances
}

// Condition is Connected.
func (s *Step) Condition() string { return fleet.ConditionConnected }

// Forget drops the beats of a Cluster that is gone.
func (s *Step) Forget(key string) {
	namespace, name := kv.RSplit(key, "/")
	gone := types.NamespacedName{Namespace: namespace, Name: name}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.beats, gone)
	delete(s.instances, gone)
}

// Reconcile takes note of a new beat, judges, and has the Cluster looked at when the judgement may change.
func (s *Step) Reconcile(_ context.Context, cluster *fleet.Cluster) result.Result {
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
	b := s.note(key, cluster)
	if b.stamp.IsZero() {
		return result.Wait(fleet.ReasonWaitingForAgent, "there was no check-in yet")
	}
	before := result.Get(cluster.Status.Conditions, fleet.ConditionConnected).Status
	hub, audible, now := s.Config.Get(), s.audible.Since(), s.Clock.Now()
	out := b.judge(cluster.Status.Agent, before, hub, audible, now)
	if !out.IsStalled() {
		s.lookAgain(key, b, hub, now)
	}
	return out
}

// note remembers the beat. A Cluster without one is remembered too: its first beat is one that the hub saw.
func (s *Step) note(key types.NamespacedName, cluster *fleet.Cluster) beat {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.beats[key]
	b := newBeat(last, known, cluster.Status.Agent, s.Clock.Now())
	s.beats[key] = b
	s.noteInstance(key, cluster, !known || !b.stamp.Equal(&last.stamp), b.intervalOf(s.Config.Get()))
	return b
}

// lookAgain puts the Cluster into the queue of moments. The queue keeps the earlier of two moments for a Cluster, so a beat
// only makes an entry that lives on, and what comes out too early goes in again.
func (s *Step) lookAgain(key types.NamespacedName, b beat, hub config.Hub, now time.Time) {
	s.moments.AddAfter(key, b.deadline(hub, s.audible.Since()).Sub(now))
}

// run takes Clusters out of the queue when their moment has come, until it is shut down.
func (s *Step) run() {
	for {
		key, shutDown := s.moments.Get()
		if shutDown {
			return
		}
		s.moments.Done(key)
		s.expire(key)
	}
}

// expire enqueues a Cluster whose moment has come, unless a beat has come in between.
func (s *Step) expire(key types.NamespacedName) {
	s.mu.Lock()
	b, known := s.beats[key]
	now := s.Clock.Now() // not later, or a beat may have come before now that b does not know of
	s.mu.Unlock()
	if !known || b.stamp.IsZero() {
		return
	}
	hub := s.Config.Get()
	if now.Before(b.deadline(hub, s.audible.Since())) {
		s.lookAgain(key, b, hub, now)
		return
	}
	s.clusters.EnqueueAfter(key.Namespace, key.Name, 0)
}

// reconsider has every Cluster looked at again when the configuration gives agents another grace.
func (s *Step) reconsider(before, after config.Hub) {
	if before.CheckinInterval() == after.CheckinInterval() && before.MissedCheckins() == after.MissedCheckins() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.beats {
		s.clusters.EnqueueAfter(key.Namespace, key.Name, 0)
	}
}

// Wait returns when the step has stopped with its context.
func (s *Step) Wait() { s.running.Wait() }
