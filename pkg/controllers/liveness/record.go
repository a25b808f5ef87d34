package liveness

import (
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// agentRecord is what the hub knows of the heartbeats of one Cluster. The zero value is a Cluster without any.
//
// An agent renews its Lease or writes status.agent, and two agents with different identities may do both. The way by which the last heartbeat
// arrived is in use. Arrivals are compared by the hub's clock alone, because the clock of a member may be wrong by hours.
//
// Agents write status.agent, and so does the hub, which copies it from a Lease. These fields tell the writes apart and limit those of the hub:
//
//	field                   is set by                                              meaning
//	observed, isObserved    each pass (observe)                                    another heartbeat in the status is new
//	copied                  a copy of lastSeen (copyLastSeen)                      an equal heartbeat in the status is from the hub, not from an agent
//	lastCopied              a copy of a report (Detector.RecordAndCopy)            another report waits until reportInterval has passed
//	lastCopiedOfNewRequest  one that names another ClusterRegistration than the    the same for such reports: the first one does not wait
//	                        report before it
//	stalledCleared          clearStalled, when it clears deploymentsStalled        the hub has cleared the field since the last copy of a report
//	stalledGone             clearStalled, when a later pass finds it empty         the write was successful: if the field is set again, an agent has
//	                                                                               set it, and it stays
//	writeLastSeen           recordOf, and each copy of a report                    from this time on, lastSeen is written even if nothing else has changed
type agentRecord struct {
	lease    *coordinationv1.Lease // renewed last; nil if there is none, or if it was deleted
	byLease  receivedHeartbeat     // the last renewal; it stays when the Lease is deleted
	byStatus receivedHeartbeat     // the last heartbeat that an agent has written to the status
	holders  holders

	observed, copied                   statusHeartbeat
	isObserved                         bool
	lastCopied, lastCopiedOfNewRequest copiedReport
	stalledCleared, stalledGone        bool
	writeLastSeen                      time.Time
}

// copiedReport identifies a report that the hub has copied to the status.
type copiedReport struct {
	digest uint64 // the result of digestOfReport
	at     time.Time
}

// reportInterval is the minimum time between two copies of different reports to the status of a Cluster. Otherwise an agent could cause a write of
// the hub, and passes over its Cluster and its Bundles, with each renewal of its Lease.
const reportInterval = time.Second

// delay returns how long a copy of another report must wait.
func (c copiedReport) delay(now time.Time) time.Duration {
	return max(0, c.at.Add(reportInterval).Sub(now))
}

// statusHeartbeat identifies a heartbeat in a status.
type statusHeartbeat struct {
	lastSeen metav1.Time
	instance string // two instances may send heartbeats within a second
}

func heartbeatIn(agent *fleet.AgentStatus) statusHeartbeat {
	return statusHeartbeat{agent.LastSeen, agent.Instance}
}

// isSame ignores an instance that is missing: Fleet's Cluster controller removes it from the status.
func (s statusHeartbeat) isSame(other statusHeartbeat) bool {
	return s.lastSeen.Equal(&other.lastSeen) && (s.instance == other.instance || s.instance == "")
}

// usesLease reports whether the last heartbeat was the renewal of a Lease.
func (r *agentRecord) usesLease() bool {
	return !r.byLease.lastSeen.IsZero() && !r.byStatus.at.After(r.byLease.at)
}

// last is the last heartbeat.
func (r *agentRecord) last() receivedHeartbeat {
	if r.usesLease() {
		return r.byLease
	}
	return r.byStatus
}

// isInTime reports whether the agent counts as connected at the arrival of a heartbeat now, and the status has an earlier heartbeat.
func (r *agentRecord) isInTime(hub config.Hub, now time.Time) bool {
	h, isInStatus := r.last(), !r.observed.lastSeen.IsZero() || !r.copied.lastSeen.IsZero()
	return isInStatus && !h.lastSeen.IsZero() && now.Before(h.at.Add(h.gracePeriod(hub)))
}

// lateness is how much later than expected a heartbeat is that arrives now.
func (r *agentRecord) lateness(hub config.Hub, now time.Time) time.Duration {
	h := r.last()
	if h.lastSeen.IsZero() {
		return 0
	}
	return now.Sub(h.at) - h.effectiveInterval(hub)
}

// copyLastSeen copies the time of the last renewal to the status.
func (r *agentRecord) copyLastSeen(agent *fleet.AgentStatus) {
	agent.LastSeen = metav1.NewTime(r.byLease.lastSeen.Truncate(time.Second))
	r.copied = heartbeatIn(agent)
}

// observe records the heartbeat that is in the status of the Cluster, and returns whether an agent has written it since the last pass.
func (r *agentRecord) observe(cluster *fleet.Cluster, hub config.Hub, now time.Time) (isNew bool) {
	agent := &cluster.Status.Agent
	status, before := heartbeatIn(agent), r.observed
	switch {
	case !r.isObserved:
		r.observed, r.isObserved = status, true
		r.observeFirst(cluster, hub, now)
	case agent.LastSeen.IsZero():
		// The hub empties the status when it removes the agent of its own cluster: the earlier heartbeats were those of that agent.
		if !before.lastSeen.IsZero() {
			r.byLease, r.byStatus, r.copied = receivedHeartbeat{}, receivedHeartbeat{}, statusHeartbeat{}
		}
		r.observed = status
	case status.isSame(before):
		if !r.usesLease() {
			r.byStatus.interval = intervalOf(agent)
		}
	case status.isSame(r.copied):
		r.observed = r.copied
	default:
		r.observed = status
		r.byStatus = receivedHeartbeat{lastSeen: agent.LastSeen, at: now, interval: intervalOf(agent)}
		r.holders.add(holder{instance: agent.Instance}, now)
		isNew = true
	}
	r.holders.expire(now, r.last().effectiveInterval(hub))
	return isNew
}

// clearStalled clears deploymentsStalled when an agent of Fleet, which does not know the field, has replaced an agent of this project. An agent of Fleet
// writes only lastSeen and the namespace, so the fields stay that the hub has copied from the Lease of the earlier agent. That is the case if
// status.agent.instance is still the one of the Lease: an agent of this project that writes the status writes its own instance. There is one
// exception: an agent of this project that can no longer write its Lease has that instance too. It writes deploymentsStalled again with its next
// heartbeat, and then the field stays.
func (r *agentRecord) clearStalled(agent *fleet.AgentStatus, isHeartbeat bool) {
	if agent.DeploymentsStalled == "" {
		r.stalledGone = r.stalledGone || r.stalledCleared
		return
	}
	if isHeartbeat && r.lease != nil && agent.Instance == instanceOf(r.lease) && !r.stalledGone {
		agent.DeploymentsStalled, r.stalledCleared = "", true
	}
}

// observeFirst records the heartbeats that the first pass over the Cluster finds after the start of the hub. Condition Registered says whether
// there were clones.
func (r *agentRecord) observeFirst(cluster *fleet.Cluster, hub config.Hub, now time.Time) {
	agent := &cluster.Status.Agent
	switch {
	case !agent.LastSeen.IsZero():
		r.byStatus = heartbeatBeforeStart(agent, now)
	case !now.Before(r.byLease.at.Add(r.byLease.gracePeriod(hub))):
		r.byLease = receivedHeartbeat{} // the status was emptied before the start
	}
	if fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionRegistered).Reason == fleet.ReasonCloneDetected {
		r.holders.expectClones(now)
	}
	if !r.usesLease() {
		r.holders.add(holder{instance: agent.Instance}, now)
	} else if r.lease != nil {
		r.holders.add(holderOf(r.lease), now)
	}
}

// The interval that an agent reports is limited to this range: an agent with an interval of a millisecond would change its state
// all the time, and an agent with an interval of a year would never be disconnected.
const (
	minInterval = time.Second
	maxInterval = 24 * time.Hour
)

// receivedHeartbeat is a heartbeat that the hub has received.
type receivedHeartbeat struct {
	lastSeen metav1.Time // by the agent's clock; zero if there was no heartbeat
	at       time.Time   // by the hub's clock
	interval time.Duration
}

// heartbeatBeforeStart is a heartbeat from before the start of this hub. Only the agent's time is known, corrected by the clock skew
// that the agent measured.
func heartbeatBeforeStart(agent *fleet.AgentStatus, now time.Time) receivedHeartbeat {
	h := receivedHeartbeat{lastSeen: agent.LastSeen, at: now, interval: intervalOf(agent)}
	if sent := corrected(agent.LastSeen, agent.ClockSkew); sent.Before(now) {
		h.at = sent
	}
	return h
}

// intervalOf is the interval that the agent reports, 0 if it reports none.
func intervalOf(agent *fleet.AgentStatus) time.Duration {
	if agent.CheckinInterval == nil {
		return 0
	}
	return agent.CheckinInterval.Duration
}

// corrected is a time of the agent's clock, corrected by the clock skew that the agent measured.
func corrected(t metav1.Time, skew *metav1.Duration) time.Time {
	if skew == nil {
		return t.Time
	}
	return t.Add(-skew.Duration)
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
func (h receivedHeartbeat) connected(skew *metav1.Duration, before corev1.ConditionStatus, hub config.Hub, reachable, now time.Time) result.Result {
	lastSeen := corrected(h.lastSeen, skew).UTC().Format(time.RFC3339)
	inGrace := now.Before(h.at.Add(h.gracePeriod(hub)))
	unknown := !inGrace && now.Before(h.deadline(hub, reachable))
	switch {
	case inGrace, unknown && before == corev1.ConditionTrue:
		return result.Done(fleet.ReasonConnected, fmt.Sprintf("the agent sends a heartbeat every %s", h.effectiveInterval(hub)))
	case unknown && before != corev1.ConditionFalse:
		return result.Wait(fleet.ReasonWaitingForHeartbeat, fmt.Sprintf(
			"the last heartbeat was sent at %s, before this hub could receive it; waiting for the next one", lastSeen))
	}
	return result.Stalled(fleet.ReasonDisconnected, fmt.Sprintf(
		"no heartbeat since %s, for more than %d intervals of %s", lastSeen, hub.MissedCheckins(), h.effectiveInterval(hub)))
}

const (
	// holderIntervals is the number of intervals without a heartbeat after which a holder is forgotten.
	holderIntervals = 3
	// maxHolders limits the holders that are kept for one Cluster.
	maxHolders = 8
)

// holders are the holders of one identity that have recently sent heartbeats. A restarted agent is a new instance, and an agent that has renewed its
// credential works with the new one only: the previous holder never sends a heartbeat again. So if two holders send heartbeats in turn, two agents run
// at the same time. They may send the same instance, if one is a thief or the copy of a running process.
type holders struct {
	recent  []recentHolder
	current holder // the one that sent the last heartbeat
	clones  bool   // an earlier holder has sent a heartbeat after a later one
}

// holder is an agent process with one credential.
type holder struct {
	instance   string // empty in the heartbeats of Fleet's agents
	credential string // its ID; empty if the heartbeat names none
}

type recentHolder struct {
	holder
	lastSeen time.Time
}

// add records a heartbeat.
func (h *holders) add(by holder, now time.Time) {
	if by.instance == "" {
		return
	}
	if by.credential == "" && by.instance == h.current.instance { // the hub has made the Lease again, and the next heartbeat names the credential
		by.credential = h.current.credential
	}
	known := slices.IndexFunc(h.recent, func(other recentHolder) bool { return other.holder == by })
	if known >= 0 {
		h.clones = h.clones || by != h.current
		h.recent[known].lastSeen = now
	} else {
		if len(h.recent) == maxHolders {
			// Replace the newest: if more clones than maxHolders take turns, replacing the oldest would always replace the next.
			h.recent = h.recent[:maxHolders-1]
		}
		h.recent = append(h.recent, recentHolder{by, now})
	}
	h.current = by
}

// expire forgets holders that have sent no heartbeat for a while. With a single holder left there are no clones.
func (h *holders) expire(now time.Time, interval time.Duration) {
	h.recent = slices.DeleteFunc(h.recent, func(other recentHolder) bool { return now.Sub(other.lastSeen) >= holderIntervals*interval })
	h.clones = h.clones && len(h.recent) > 1
}

// expectClones is for a Cluster that had clones before this hub started: the other holder may still send heartbeats.
func (h *holders) expectClones(now time.Time) {
	h.recent, h.clones = append(h.recent, recentHolder{lastSeen: now}), true
}

// names returns the instances, sorted. An instance with several credentials is named with each of them.
func (h *holders) names() (names []string) {
	for _, one := range h.recent {
		isSame := func(other recentHolder) bool {
			return other.instance == one.instance && other.credential != one.credential
		}
		switch {
		case one.instance == "":
		case one.credential != "" && slices.ContainsFunc(h.recent, isSame):
			names = append(names, fmt.Sprintf("%s with credential %s", one.instance, one.credential))
		default:
			names = append(names, one.instance)
		}
	}
	slices.Sort(names)
	return names
}
