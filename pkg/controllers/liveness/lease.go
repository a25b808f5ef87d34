package liveness

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Limits of a report. The same limits apply to an agent that writes status.agent itself: the CustomResourceDefinition limits the lengths of an instance
// and of a request's name, and the admission policy fleet-agent-status limits the whole and the number of quantities
// (fleetstatus.MaxQuantities).
const (
	maxReport      = 16384 // bytes of the JSON
	maxInstance    = 64
	maxRequestName = 253
)

// maxAhead is how far the clock of an agent may be ahead of the hub's clock. A later time of a renewal counts as this time.
const maxAhead = 24 * time.Hour

// leaseState is the Lease of a Cluster that an agent has renewed last.
type leaseState struct {
	lease *coordinationv1.Lease // nil if it was deleted
	// renewed is the time of its renewal, by the agent's clock. It stays when the Lease is deleted.
	renewed time.Time
	// arrived is when the renewal arrived, by the hub's clock; zero if it was in the cache at the start.
	arrived time.Time
	// ignoredUntil is the last renewal at which the status of the Cluster was not empty: when the hub empties the status, because it
	// installs the agent again, only later renewals count.
	ignoredUntil time.Time
	// isCurrent is false if the status has a later heartbeat of an agent with another identity, which writes the status itself.
	isCurrent bool
	// writeLastSeen is the time from which status.agent.lastSeen is written even if nothing else has changed.
	writeLastSeen time.Time
}

// statusSeen is the time in status.agent.lastSeen of a Cluster.
type statusSeen struct {
	lastSeen metav1.Time
	replaced metav1.Time // the time that the hub has replaced; it appears again if that write failed
	arrived  time.Time   // when an agent wrote the status, by the hub's clock; zero if that was before the first pass
}

// noteStatus records a heartbeat that an agent has written to the status. The caller holds the lock.
func (d *Detector) noteStatus(key types.NamespacedName, lastSeen metav1.Time, now time.Time) {
	status, known := d.statuses[key]
	switch {
	case !known:
		d.statuses[key] = statusSeen{lastSeen: lastSeen}
	case !lastSeen.Equal(&status.lastSeen) && !lastSeen.Equal(&status.replaced):
		d.statuses[key] = statusSeen{lastSeen: lastSeen, arrived: now}
	}
}

// setLastSeen sets lastSeen to the time of a renewal. The caller holds the lock.
func (d *Detector) setLastSeen(key types.NamespacedName, agent *fleet.AgentStatus, renewed time.Time) {
	status := d.statuses[key]
	before := agent.LastSeen
	agent.LastSeen = metav1.NewTime(renewed.Truncate(time.Second))
	if !agent.LastSeen.Equal(&before) {
		d.statuses[key] = statusSeen{lastSeen: agent.LastSeen, replaced: before, arrived: status.arrived}
	}
}

// Reduce is the transform of the cache of Leases. An agent may write anything into the metadata of its Lease where the admission
// policies are not in force: only what the hub reads is kept.
func Reduce(object any) (any, error) {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return object, nil
	}
	maps.DeleteFunc(lease.Labels, func(key, _ string) bool { return key != fleet.ManagedLabel && key != apply.LabelHash })
	maps.DeleteFunc(lease.Annotations, func(key, value string) bool {
		switch key {
		case apply.LabelID, apply.LabelGVK, apply.LabelName, apply.LabelNamespace, fleet.ClusterAnnotation, fleet.ClusterNamespaceAnnotation,
			registration.LeaseProof:
			return len(value) > maxRequestName
		case registration.LeaseReport:
			return false
		}
		return true
	})
	if text := lease.Annotations[registration.LeaseReport]; len(text) > maxReport {
		lease.Annotations[registration.LeaseReport] = strings.Clone(text[:maxReport+1]) // too long to be a report
	}
	lease.Finalizers = slices.Clone(lease.Finalizers[:min(len(lease.Finalizers), 1)]) // the hub removes all of them
	if _, ok := clusterOf(lease); !ok {
		delete(lease.Annotations, registration.LeaseReport)
	}
	lease.OwnerReferences = nil
	lease.Spec.Strategy, lease.Spec.PreferredHolder = nil, nil
	if holder := lease.Spec.HolderIdentity; holder != nil && len(*holder) > maxInstance {
		lease.Spec.HolderIdentity = nil
	}
	return lease, nil
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

// onRenewal records a heartbeat. It enqueues the Cluster only if its status will change. atStart reports a Lease that was in the cache
// before: of two such Leases of a Cluster, the one with the later renewal is in use.
func (d *Detector) onRenewal(lease *coordinationv1.Lease, atStart bool) {
	defer guard.Recover(guard.Event, lease, nil)
	hub, now := d.Config.Get(), d.Clock.Now()
	key, ok := clusterOf(lease)
	renewed := renewTime(lease, now)
	if !ok || renewed.IsZero() {
		return
	}
	report, invalid := reportOf(lease)
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.leases[key]
	if last == nil {
		// A hub that starts writes nothing, and later not all agents get another lastSeen at once.
		half := hub.LastSeenInterval() / 2
		last = &leaseState{writeLastSeen: now.Add(half + rand.N(half))} //nolint:gosec // spreads writes over time
		d.leases[key] = last
	}
	before := last.lease
	switch {
	case before != nil && before.Name == lease.Name && before.ResourceVersion == lease.ResourceVersion,
		before != nil && atStart && renewed.Before(last.renewed):
		return
	case before != nil && before.Name == lease.Name && before.Spec.RenewTime.Equal(lease.Spec.RenewTime):
		renewed = last.renewed // only the report has changed
	case atStart:
		last.renewed, last.arrived = renewed, time.Time{}
	default:
		last.renewed, last.arrived = renewed, now
	}
	last.lease = lease
	report.LastSeen = metav1.NewTime(renewed)
	if atStart {
		h := nextHeartbeat(receivedHeartbeat{}, false, report, now)
		if !now.Before(h.at.Add(h.gracePeriod(hub))) {
			last.ignoredUntil = renewed // so that a Cluster whose status was emptied before this start waits for a new heartbeat
		}
		return // the first pass over the Cluster counts it
	}
	if invalid != nil && (before == nil || before.Annotations[registration.LeaseReport] != lease.Annotations[registration.LeaseReport]) {
		d.reportInvalid(key, lease, invalid)
	}

	// A heartbeat that arrives in time changes nothing but the time until which the agent is connected.
	heartbeat, known := d.heartbeats[key]
	inTime := known && !heartbeat.lastSeen.IsZero() && now.Before(heartbeat.at.Add(heartbeat.gracePeriod(hub)))
	if inTime {
		d.record(key, report, heartbeat, known, hub, now)
	}
	if !inTime || !last.isCurrent || before == nil || before.Name != lease.Name || !sameReport(before, lease) || !now.Before(last.writeLastSeen) {
		d.clusters.EnqueueAfter(key.Namespace, key.Name, 0)
	}
}

// reportInvalid records an event on the Cluster. The earlier report stays in the status.
func (d *Detector) reportInvalid(key types.NamespacedName, lease *coordinationv1.Lease, invalid error) {
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	cluster.SetGroupVersionKind(fleet.SchemeGroupVersion.WithKind("Cluster"))
	d.Events.Event(cluster, corev1.EventTypeWarning, fleet.ReasonInvalidReport, fmt.Sprintf(
		"Annotation %s of Lease %s/%s, which the agent writes, is ignored: %v", registration.LeaseReport, lease.Namespace, lease.Name, invalid))
}

// forgetLease drops a Lease that was deleted with the identity whose agent renewed it.
func (d *Detector) forgetLease(lease *coordinationv1.Lease) {
	key, ok := clusterOf(lease)
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := d.leases[key]; ok && last != nil && last.lease != nil && last.lease.Name == lease.Name {
		last.lease = nil
	}
}

// CopyReport copies the report of the agent from its Lease to status.agent, if the report has changed, or if lastSeen was not written for a
// while. cluster is a copy, which the caller writes.
func (d *Detector) CopyReport(cluster *fleet.Cluster) {
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
	hub, now := d.Config.Get(), d.Clock.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noteStatus(key, cluster.Status.Agent.LastSeen, now)
	last := d.leases[key]
	if last == nil || last.lease == nil {
		return
	}
	renewed := last.renewed
	switch {
	case !cluster.Status.Agent.LastSeen.IsZero():
		last.ignoredUntil = renewed
	case last.ignoredUntil.Equal(renewed):
		return
	}
	// The annotation of the ServiceAccount names the request with which the agent has registered. The agent cannot write it.
	account, err := d.accounts.Get(last.lease.Namespace, last.lease.Name)
	if err != nil || last.lease.Annotations[registration.LeaseReport] == "" {
		return
	}
	request := account.Annotations[fleet.ClusterRegistrationAnnotation]
	last.isCurrent = cluster.Status.Agent.Registration == request || last.isLater(cluster.Status.Agent.LastSeen.Time, d.statuses[key].arrived, now)
	if !last.isCurrent {
		return
	}
	report, invalid := reportOf(last.lease)
	if invalid != nil { // the heartbeat counts, and the earlier report stays
		report = cluster.Status.Agent
	}
	report.Registration = request
	report.LastSeen = cluster.Status.Agent.LastSeen
	if !report.LastSeen.IsZero() && now.Before(last.writeLastSeen) && equality.Semantic.DeepEqual(report, cluster.Status.Agent) {
		return
	}
	d.setLastSeen(key, &report, renewed)
	cluster.Status.Agent = report
	last.writeLastSeen = now.Add(hub.LastSeenInterval())
}

// isLater reports whether the renewal is later than the heartbeat of another agent in the status, and than its arrival. The clocks of two
// agents are compared only for a renewal from before this hub started.
func (l *leaseState) isLater(lastSeen, arrived, now time.Time) bool {
	if !l.arrived.IsZero() {
		return !arrived.After(l.arrived)
	}
	return arrived.IsZero() && lastSeen.After(now.Add(maxAhead)) || !lastSeen.After(l.renewed)
}

// withRenewal returns status.agent with the time of the last renewal of the agent's Lease, even if the Lease was deleted, until an agent writes
// the status. The caller holds the lock.
func (d *Detector) withRenewal(key types.NamespacedName, agent fleet.AgentStatus) (_ fleet.AgentStatus, byLease bool) {
	last := d.leases[key]
	if last == nil || agent.LastSeen.IsZero() || !last.isCurrent || last.lease == nil && d.statuses[key].arrived.After(last.arrived) {
		return agent, false
	}
	agent.LastSeen = metav1.NewTime(last.renewed)
	return agent, true
}

// clusterOf returns the Cluster of a Lease. An agent may write the annotations, but the name of the namespace is a hash of them.
func clusterOf(lease *coordinationv1.Lease) (key types.NamespacedName, ok bool) {
	key = types.NamespacedName{Namespace: lease.Annotations[fleet.ClusterNamespaceAnnotation], Name: lease.Annotations[fleet.ClusterAnnotation]}
	return key, key.Name != "" && registration.ClusterNamespace(key.Namespace, key.Name) == lease.Namespace
}

// renewTime is the time of the last renewal by the agent's clock, at most maxAhead from now; zero if there was none, or if the API server
// would not store it in a status.
func renewTime(lease *coordinationv1.Lease, now time.Time) time.Time {
	if lease.Spec.RenewTime == nil || !storable(lease.Spec.RenewTime.Time) {
		return time.Time{}
	}
	if latest := now.Add(maxAhead); lease.Spec.RenewTime.After(latest) {
		return latest
	}
	return lease.Spec.RenewTime.Time
}

// storable reports whether the time has a year of four digits.
func storable(t time.Time) bool { return t.UTC().Year() > 0 && t.UTC().Year() < 9999 }

func sameReport(a, b *coordinationv1.Lease) bool {
	return a.Annotations[registration.LeaseReport] == b.Annotations[registration.LeaseReport] &&
		a.Annotations[registration.LeaseProof] == b.Annotations[registration.LeaseProof] && holder(a) == holder(b)
}

// holder is the instance of the agent.
func holder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// reportOf decodes the report of the agent, without lastSeen and registration. The agent may write anything there, and the API server
// would refuse a status that is not valid.
func reportOf(lease *coordinationv1.Lease) (report fleet.AgentStatus, err error) {
	text := lease.Annotations[registration.LeaseReport]
	if text == "" {
		return fleet.AgentStatus{Instance: holder(lease)}, nil
	}
	if len(text) > maxReport {
		return fleet.AgentStatus{}, fmt.Errorf("it has more than %d bytes", maxReport)
	}
	if report, err = fleetstatus.DecodeAgent([]byte(text)); err != nil {
		return fleet.AgentStatus{}, err
	}
	proof := lease.Annotations[registration.LeaseProof]
	if expires := report.CredentialExpires; expires != nil && !expires.IsZero() && !storable(expires.Time) {
		return fleet.AgentStatus{}, errors.New("credentialExpires has a year of more than four digits")
	}
	report.LastSeen, report.Registration = metav1.Time{}, ""
	report.Instance, report.PossessionProof = holder(lease), proof
	return report, nil
}
