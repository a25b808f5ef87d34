// Package liveness decides for each Cluster whether its agent is connected: from a heartbeat until the agent has missed as many
// heartbeats as the configuration allows. A heartbeat that changes nothing costs the hub no request. The status is written at
// transitions, for a changed report, and with lastSeen at a slow rate.
//
// It also copies the report in a Lease to status.agent (lease.go), and recognizes two agents with one identity (holders in record.go).
//
// The flow of a heartbeat is in this file. An agent that renews its Lease arrives at Detector.onRenewal, and an agent that writes the status of its
// Cluster at Detector.RecordAndCopy. Detector.Reconcile decides, and Detector.expire enqueues the Cluster at the end of a grace period.
package liveness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Detector sets condition Connected of a Cluster.
type Detector struct {
	*app.Context
	queue        enqueue.Enqueuer
	accounts     accountCache
	reachability *APIReachability
	deadlines    workqueue.TypedDelayingInterface[types.NamespacedName]
	running      sync.WaitGroup

	mu      sync.Mutex
	records map[types.NamespacedName]*agentRecord
}

// accountCache is the cache of ServiceAccounts.
type accountCache interface {
	Get(namespace, name string) (*corev1.ServiceAccount, error)
}

// Register sets up the Detector for the controller of Clusters. It watches Leases; other heartbeats arrive with the Clusters that it
// reconciles, and the ends of grace periods come from a queue ordered by time, which stops with ctx. Wait waits for that.
func Register(ctx context.Context, c *app.Context, reachability *APIReachability) *Detector {
	d := newDetector(c, c.Fleet.Cluster(), c.Core.ServiceAccount().Cache(), reachability)
	d.watchLeases(c.Coordination.Lease().Informer())
	context.AfterFunc(ctx, d.deadlines.ShutDown)
	d.running.Go(d.run)
	c.Config.OnChange(d.onSettings)
	return d
}

func newDetector(c *app.Context, clusters enqueue.Enqueuer, accounts accountCache, reachability *APIReachability) *Detector {
	return &Detector{
		Context:      c,
		queue:        clusters,
		accounts:     accounts,
		reachability: reachability,
		deadlines:    workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: c.Clock}),
		records:      map[types.NamespacedName]*agentRecord{},
	}
}

// Wait returns when the Detector has stopped.
func (d *Detector) Wait() { d.running.Wait() }

// Forget drops the heartbeats of a deleted Cluster.
func (d *Detector) Forget(key string) {
	namespace, name := kv.RSplit(key, "/")
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.records, types.NamespacedName{Namespace: namespace, Name: name})
}

// recordOf returns the record of a Cluster. The caller holds the lock.
func (d *Detector) recordOf(key types.NamespacedName, hub config.Hub, now time.Time) *agentRecord {
	r := d.records[key]
	if r == nil {
		// A hub that starts writes nothing, and later not all agents get another lastSeen at once.
		half := hub.LastSeenInterval() / 2
		r = &agentRecord{writeLastSeen: now.Add(half + rand.N(half))} //nolint:gosec // spreads writes over time
		d.records[key] = r
	}
	return r
}

// watchLeases records the renewals that are in a cache of Leases, and the renewals that arrive there.
func (d *Detector) watchLeases(leases cache.SharedIndexInformer) {
	for _, object := range leases.GetStore().List() {
		d.onRenewal(object.(*coordinationv1.Lease), true)
	}
	// Adding a handler fails only if the informer was stopped.
	_, _ = leases.AddEventHandler(enqueue.EventHandler[*coordinationv1.Lease]{
		Added: d.onRenewal,
		Changed: func(before, after *coordinationv1.Lease) {
			if !before.Spec.RenewTime.Equal(after.Spec.RenewTime) || !sameReport(before, after) {
				d.onRenewal(after, false)
			}
		},
		Deleted: d.forgetLease,
	})
}

// onRenewal records a heartbeat that is the renewal of a Lease, and enqueues the Cluster if its status will change. atStart reports a Lease that
// was in the cache before: the first pass over the Cluster counts its renewal.
func (d *Detector) onRenewal(lease *coordinationv1.Lease, atStart bool) {
	defer guard.Recover(guard.Event, lease, nil)
	hub, now := d.Config.Get(), d.Clock.Now()
	key, ok := clusterOf(lease)
	renewed := renewTime(lease)
	if !ok || renewed.IsZero() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.recordOf(key, hub, now)
	before := r.lease
	if before != nil && before.Name == lease.Name && before.ResourceVersion == lease.ResourceVersion {
		return
	}
	if atStart {
		report, _ := reportOf(lease)
		report.LastSeen = renewed
		// Of two Leases, the one with the later renewal is in use.
		if h := heartbeatBeforeStart(&report, now); before == nil || !h.at.Before(r.byLease.at) {
			r.lease, r.byLease = lease, h
		}
		return
	}

	inTime, usedLease := r.isInTime(hub, now), r.usesLease()
	r.lease = lease
	if before == nil || before.Name != lease.Name || !before.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
		d.Metrics.Heartbeat(r.lateness(hub, now))
		r.byLease.lastSeen, r.byLease.at = renewed, now
		r.holders.add(holderOf(lease), now)
	} else if holderOf(before) != holderOf(lease) { // not a heartbeat, but somebody has written it
		r.holders.add(holderOf(lease), now)
	}
	// Most renewals repeat the report: it is not decoded again. RecordAndCopy decodes it when it copies it, because 10,000 decoded reports would take 20 MB.
	isNew := before == nil || before.Annotations[registration.LeaseReport] != lease.Annotations[registration.LeaseReport]
	if isNew || r.byLease.interval == 0 {
		report, invalid := reportOf(lease)
		if interval := intervalOf(&report); interval != 0 { // a Lease that the hub has made again has no report yet
			r.byLease.interval = interval
		}
		if invalid != nil && isNew {
			d.reportInvalid(key, lease, invalid)
		}
	}
	r.holders.expire(now, r.byLease.effectiveInterval(hub))

	// A heartbeat in time changes nothing but the time until which the agent is connected.
	sameLease := usedLease && before != nil && before.Name == lease.Name
	switch {
	case !inTime || !sameLease || !now.Before(r.writeLastSeen):
		d.queue.EnqueueAfter(key.Namespace, key.Name, 0)
	case !sameReport(before, lease):
		d.queue.EnqueueAfter(key.Namespace, key.Name, r.lastCopied.delay(now))
	}
}

// reportInvalid records an event on the Cluster. The earlier report stays in the status.
func (d *Detector) reportInvalid(key types.NamespacedName, lease *coordinationv1.Lease, invalid error) {
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	cluster.SetGroupVersionKind(fleet.SchemeGroupVersion.WithKind("Cluster"))
	d.Events.Event(cluster, corev1.EventTypeWarning, fleet.EventInvalidReport, fmt.Sprintf(
		"Annotation %s of Lease %s/%s, which the agent writes, is ignored: %v", registration.LeaseReport, lease.Namespace, lease.Name, invalid))
}

// forgetLease drops a Lease that was deleted with the identity whose agent renewed it. Its last renewal still counts.
func (d *Detector) forgetLease(lease *coordinationv1.Lease) {
	key, ok := clusterOf(lease)
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.records[key]; ok && r != nil && r.lease != nil && r.lease.Name == lease.Name {
		r.lease = nil
	}
}

// RecordAndCopy records a heartbeat that an agent has written to the status. If the agent renews a Lease instead, it copies its report to the
// status if the report has changed, or if lastSeen was not written for a while. It copies the first report of an identity at once, and another
// one after reportInterval: it enqueues the Cluster for that. cluster is a copy, which the caller writes.
func (d *Detector) RecordAndCopy(cluster *fleet.Cluster) {
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
	hub, now := d.Config.Get(), d.Clock.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.recordOf(key, hub, now)
	late := r.lateness(hub, now)
	isHeartbeat := r.observe(cluster, hub, now)
	if isHeartbeat {
		d.Metrics.Heartbeat(late)
	}
	r.clearStalled(&cluster.Status.Agent, isHeartbeat)
	if r.lease == nil || !r.usesLease() || r.lease.Annotations[registration.LeaseReport] == "" {
		return
	}
	// The Lease has the name of the agent's ServiceAccount, whose annotation names the request with which the agent has registered. The agent cannot
	// write it.
	account, err := d.accounts.Get(r.lease.Namespace, r.lease.Name)
	if err != nil {
		return
	}
	report, invalid := reportOf(r.lease)
	if invalid != nil { // the heartbeat counts, and the earlier report stays
		report = cluster.Status.Agent
	}
	// An agent that has just started reports neither of the two fields yet. If it reports only keptReleases, it is not stalled, or of a version that does
	// not know the other field.
	if before := cluster.Status.Agent; before.KeptReleases != nil || before.DeploymentsStalled != "" {
		fields := reportedFields(r.lease)
		_, hasKept := fields["keptReleases"]
		_, hasStalled := fields["deploymentsStalled"]
		if !hasKept {
			report.KeptReleases = before.KeptReleases
		}
		if !hasKept && !hasStalled {
			report.DeploymentsStalled = before.DeploymentsStalled
		}
	}
	report.Registration = account.Annotations[fleet.ClusterRegistrationAnnotation]
	report.LastSeen = cluster.Status.Agent.LastSeen
	if !report.LastSeen.IsZero() && now.Before(r.writeLastSeen) && equality.Semantic.DeepEqual(report, cluster.Status.Agent) {
		return
	}
	// A report that was copied before is copied again at once: its write has failed, or the cache does not have it yet.
	copied, digest := &r.lastCopied, digestOfReport(r.lease)
	if report.Registration != cluster.Status.Agent.Registration {
		copied = &r.lastCopiedOfNewRequest
	}
	if delay := copied.delay(now); delay > 0 && !report.LastSeen.IsZero() && copied.digest != digest {
		d.queue.EnqueueAfter(key.Namespace, key.Name, delay)
		return
	}
	*copied = copiedReport{digest: digest, at: now}
	r.stalledCleared, r.stalledGone = false, false
	r.lastCopied = *copied
	cluster.Status.Agent = report
	r.copyLastSeen(&cluster.Status.Agent)
	r.writeLastSeen = now.Add(hub.LastSeenInterval())
}

// Reconcile decides whether the agent is connected, and enqueues the Cluster for the time at which it is disconnected without another
// heartbeat. RecordAndCopy was called before.
func (d *Detector) Reconcile(_ context.Context, cluster *fleet.Cluster) result.Result {
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
	agent := &cluster.Status.Agent
	if agent.LastSeen.IsZero() {
		return result.Wait(fleet.ReasonWaitingForAgent, "the agent has not sent a heartbeat yet")
	}
	hub, reachable, now := d.Config.Get(), d.reachability.Since(), d.Clock.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.recordOf(key, hub, now)
	before := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionConnected).Status
	out := r.last().connected(agent.ClockSkew, before, hub, reachable, now)
	switch {
	case !out.IsStalled():
		// The queue keeps the earlier of two times for a Cluster, so expire adds the Cluster again if a heartbeat has arrived.
		d.deadlines.AddAfter(key, r.last().deadline(hub, reachable).Sub(now))
	case r.usesLease(): // the status shows when a disconnected agent was seen last
		r.copyLastSeen(agent)
	}
	return out
}

// run calls expire for each Cluster whose deadline has passed, until the queue is shut down.
func (d *Detector) run() {
	for {
		key, shutDown := d.deadlines.Get()
		if shutDown {
			return
		}
		d.deadlines.Done(key)
		d.expire(key)
	}
}

// expire enqueues a Cluster whose deadline has passed, unless another heartbeat has arrived.
func (d *Detector) expire(key types.NamespacedName) {
	d.mu.Lock()
	h := receivedHeartbeat{}
	if r := d.records[key]; r != nil {
		h = r.last()
	}
	now := d.Clock.Now() // under the lock, so that no heartbeat before now is missed
	d.mu.Unlock()
	if h.lastSeen.IsZero() {
		return
	}
	if remaining := h.deadline(d.Config.Get(), d.reachability.Since()).Sub(now); remaining > 0 {
		d.deadlines.AddAfter(key, remaining)
		return
	}
	d.queue.EnqueueAfter(key.Namespace, key.Name, 0)
}

// onSettings enqueues every Cluster if the configuration changes the grace period.
func (d *Detector) onSettings(before, after config.Hub) {
	if before.CheckinInterval() == after.CheckinInterval() && before.MissedCheckins() == after.MissedCheckins() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for key := range d.records {
		d.queue.EnqueueAfter(key.Namespace, key.Name, 0)
	}
}

// Instances names the agent processes that have recently sent heartbeats with the identity of the Cluster, sorted, with their credentials if they
// differ in nothing else.
func (d *Detector) Instances(cluster *fleet.Cluster) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.records[types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}]; r != nil {
		return r.holders.names()
	}
	return nil
}

// HasClones reports whether two agents send heartbeats with the identity of the Cluster.
func (d *Detector) HasClones(cluster *fleet.Cluster) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.records[types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}]
	return r != nil && r.holders.clones
}
