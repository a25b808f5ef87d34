// Package liveness decides for each Cluster whether its agent is connected: from a heartbeat until the agent has missed as many
// heartbeats as the configuration allows. A heartbeat costs the hub no request; the status is written only on transitions.
// Detector.Reconcile handles a heartbeat of an agent that writes the status of its Cluster, Detector.onRenewal (lease.go) a heartbeat of an
// agent that renews its Lease, and Detector.expire the end of a grace period.
package liveness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Detector sets condition Connected of a Cluster.
type Detector struct {
	*app.Context
	clusters     enqueue.Enqueuer
	accounts     accountCache
	reachability *APIReachability
	deadlines    workqueue.TypedDelayingInterface[types.NamespacedName]
	running      sync.WaitGroup

	mu         sync.Mutex
	heartbeats map[types.NamespacedName]receivedHeartbeat
	instances  map[types.NamespacedName]*instances
	leases     map[types.NamespacedName]*leaseState
	statuses   map[types.NamespacedName]statusSeen
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
		clusters:     clusters,
		accounts:     accounts,
		reachability: reachability,
		deadlines:    workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: c.Clock}),
		heartbeats:   map[types.NamespacedName]receivedHeartbeat{},
		instances:    map[types.NamespacedName]*instances{},
		leases:       map[types.NamespacedName]*leaseState{},
		statuses:     map[types.NamespacedName]statusSeen{},
	}
}

// Wait returns when the Detector has stopped.
func (d *Detector) Wait() { d.running.Wait() }

// Condition is Connected.
func (d *Detector) Condition() string { return fleet.ConditionConnected }

// Forget drops the heartbeats of a deleted Cluster.
func (d *Detector) Forget(key string) {
	namespace, name := kv.RSplit(key, "/")
	gone := types.NamespacedName{Namespace: namespace, Name: name}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.heartbeats, gone)
	delete(d.instances, gone)
	delete(d.leases, gone)
	delete(d.statuses, gone)
}

// Reconcile records a new heartbeat, decides whether the agent is connected, and enqueues the Cluster for the time at which it is
// disconnected without another heartbeat.
func (d *Detector) Reconcile(_ context.Context, cluster *fleet.Cluster) result.Result {
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
	hub, reachable, now := d.Config.Get(), d.reachability.Since(), d.Clock.Now()

	// A Cluster without a heartbeat is recorded too: the hub then counts the first heartbeat from its arrival.
	d.mu.Lock()
	last, known := d.heartbeats[key]
	d.noteStatus(key, cluster.Status.Agent.LastSeen, now)
	agent, byLease := d.withRenewal(key, cluster.Status.Agent)
	d.expectInstances(key, cluster, now)
	h := d.record(key, agent, last, known, hub, now)
	d.mu.Unlock()
	if h.lastSeen.IsZero() {
		return result.Wait(fleet.ReasonWaitingForAgent, "the agent has not checked in yet")
	}

	before := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionConnected).Status
	out := h.connected(agent, before, hub, reachable, now)
	switch {
	case !out.IsStalled():
		// The queue keeps the earlier of two times for a Cluster, so expire adds the Cluster again if a heartbeat has arrived.
		d.deadlines.AddAfter(key, h.deadline(hub, reachable).Sub(now))
	case byLease:
		d.mu.Lock()
		d.setLastSeen(key, &cluster.Status.Agent, agent.LastSeen.Time)
		d.mu.Unlock()
	}
	return out
}

// record records the last report of the agent; with the same lastSeen it is the same heartbeat. The caller holds the lock.
func (d *Detector) record(
	key types.NamespacedName, agent fleet.AgentStatus, last receivedHeartbeat, known bool, hub config.Hub, now time.Time,
) receivedHeartbeat {
	h := nextHeartbeat(last, known, agent, now)
	d.heartbeats[key] = h
	if known && !h.lastSeen.IsZero() && !h.lastSeen.Equal(&last.lastSeen) {
		late := time.Duration(0)
		if !last.lastSeen.IsZero() {
			late = h.at.Sub(last.at) - h.effectiveInterval(hub)
		}
		d.Metrics.Heartbeat(late)
	}
	d.observeInstance(key, agent.Instance, !known || !h.lastSeen.Equal(&last.lastSeen), h.effectiveInterval(hub), now)
	return h
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
	h, known := d.heartbeats[key]
	now := d.Clock.Now() // under the lock, so that no heartbeat before now is missed
	d.mu.Unlock()
	if !known || h.lastSeen.IsZero() {
		return
	}
	if remaining := h.deadline(d.Config.Get(), d.reachability.Since()).Sub(now); remaining > 0 {
		d.deadlines.AddAfter(key, remaining)
		return
	}
	d.clusters.EnqueueAfter(key.Namespace, key.Name, 0)
}

// onSettings enqueues every Cluster if the configuration changes the grace period.
func (d *Detector) onSettings(before, after config.Hub) {
	if before.CheckinInterval() == after.CheckinInterval() && before.MissedCheckins() == after.MissedCheckins() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for key := range d.heartbeats {
		d.clusters.EnqueueAfter(key.Namespace, key.Name, 0)
	}
}

// The interval that an agent reports is limited to this range: an agent with an interval of a millisecond would change its state
// all the time, and an agent with an interval of a year would never be disconnected.
const (
	minInterval = time.Second
	maxInterval = 24 * time.Hour
)

// receivedHeartbeat is the last heartbeat of one agent.
type receivedHeartbeat struct {
	lastSeen metav1.Time // status.agent.lastSeen, by the agent's clock
	at       time.Time   // by the hub's clock
	interval time.Duration
}

// nextHeartbeat returns the heartbeat in the status of a Cluster, given the last recorded heartbeat. Its time is the time at which the
// hub saw it, because the clock of a member may be wrong by hours. For a heartbeat from before the start of this hub only the
// agent's time is known, corrected by the clock skew that the agent measured.
func nextHeartbeat(last receivedHeartbeat, known bool, agent fleet.AgentStatus, now time.Time) receivedHeartbeat {
	h := receivedHeartbeat{lastSeen: agent.LastSeen, at: now}
	switch {
	case known && last.lastSeen.Equal(&agent.LastSeen):
		h.at = last.at
	case !known:
		if corrected := correctedLastSeen(agent); corrected.Before(now) {
			h.at = corrected
		}
	}
	if agent.CheckinInterval != nil {
		h.interval = agent.CheckinInterval.Duration
	}
	return h
}

// correctedLastSeen is the time of the last heartbeat, corrected by the clock skew that the agent measured.
func correctedLastSeen(agent fleet.AgentStatus) time.Time {
	if agent.ClockSkew == nil {
		return agent.LastSeen.Time
	}
	return agent.LastSeen.Add(-agent.ClockSkew.Duration)
}

// effectiveInterval returns the time between two heartbeats of the agent.
func (h receivedHeartbeat) effectiveInterval(hub config.Hub) time.Duration {
	interval := h.interval
	if interval <= 0 {
		interval = hub.CheckinInterval()
	}
	return min(max(interval, minInterval), maxInterval)
}

// gracePeriod returns the time after a heartbeat for which the agent counts as connected.
func (h receivedHeartbeat) gracePeriod(hub config.Hub) time.Duration {
	return time.Duration(hub.MissedCheckins()) * h.effectiveInterval(hub)
}

// deadline returns the time at which the agent is disconnected without another heartbeat: one grace period after its last heartbeat or after the
// hub's API server became reachable, whichever is later. A hub that was down has received no heartbeats, and must not report all agents as
// disconnected.
func (h receivedHeartbeat) deadline(hub config.Hub, reachable time.Time) time.Time {
	from := h.at
	if reachable.After(from) {
		from = reachable
	}
	return from.Add(h.gracePeriod(hub))
}

// connected decides condition Connected, given its previous status. Between the end of the grace period and the deadline the hub
// does not know: then a connected agent stays connected, and any other agent becomes connected only by a heartbeat. The messages
// do not change until the next heartbeat, so a disconnected agent causes no further writes.
func (h receivedHeartbeat) connected(agent fleet.AgentStatus, before corev1.ConditionStatus, hub config.Hub, reachable, now time.Time) result.Result {
	lastSeen := correctedLastSeen(agent).UTC().Format(time.RFC3339)
	inGrace := now.Before(h.at.Add(h.gracePeriod(hub)))
	unknown := !inGrace && now.Before(h.deadline(hub, reachable))
	switch {
	case inGrace, unknown && before == corev1.ConditionTrue:
		return result.Done(fleet.ReasonConnected, fmt.Sprintf("the agent checks in every %s", h.effectiveInterval(hub)))
	case unknown && before != corev1.ConditionFalse:
		return result.Wait(fleet.ReasonWaitingForHeartbeat, fmt.Sprintf(
			"the last check-in was at %s, before this hub could receive it; waiting for the next one", lastSeen))
	}
	return result.Stalled(fleet.ReasonDisconnected, fmt.Sprintf(
		"no check-in since %s, for more than %d intervals of %s", lastSeen, hub.MissedCheckins(), h.effectiveInterval(hub)))
}

// APIReachability records since when heartbeats can arrive: since the start of the hub, or since the hub's API server, to which
// agents send them, became reachable again.
type APIReachability struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	since time.Time
}

// NewAPIReachability starts now.
func NewAPIReachability(c clock.PassiveClock) *APIReachability {
	return &APIReachability{clock: c, since: c.Now()}
}

// Since returns the time since which the API server is reachable.
func (r *APIReachability) Since() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since
}

// unreachable records that the API server is not reachable now.
func (r *APIReachability) unreachable() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = r.clock.Now()
}

// Wrap returns a transport that records failed watches of the hub's own clients. While the API server is not reachable, some watch is
// retried all the time. Other requests may fail for other reasons and do not count.
func (r *APIReachability) Wrap(next http.RoundTripper) http.RoundTripper {
	return reachabilityTransport{r, next}
}

type reachabilityTransport struct {
	reachability *APIReachability
	next         http.RoundTripper
}

// RoundTrip sends the request.
func (t reachabilityTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(req)
	if req.URL.Query().Get("watch") != "" && isUnreachable(req.Context(), response, err) {
		t.reachability.unreachable()
	}
	return response, err
}

// WrappedRoundTripper gives client-go access to the transport, to close its connections.
func (t reachabilityTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// isUnreachable excludes requests that the hub cancelled and requests that the API server rejected.
func isUnreachable(ctx context.Context, response *http.Response, err error) bool {
	if err != nil {
		return ctx.Err() == nil && !errors.Is(err, context.Canceled)
	}
	switch response.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

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
