package liveness

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// What an agent says about its interval is believed between these: one that says a millisecond would come and go all day,
// and one that says a year would never be missed.
const (
	shortestInterval = time.Second
	longestInterval  = 24 * time.Hour
)

// beat is the last heartbeat of one agent.
type beat struct {
	stamp    metav1.Time // what the agent wrote
	at       time.Time   // when it was, by the hub's clock
	interval time.Duration
}

// newBeat is the beat that a Cluster shows, after the one that was known. The moment of a beat is the one at which the hub
// saw it: the clock of a member may be wrong by hours. Of a beat that was there before this hub looked for the first time
// there is only the agent's word, corrected by what the agent measured of its own clock.
func newBeat(last beat, known bool, agent fleet.AgentStatus, now time.Time) beat {
	b := beat{stamp: agent.LastSeen, at: now}
	switch {
	case known && last.stamp.Equal(&agent.LastSeen):
		b.at = last.at
	case !known:
		b.at = earliest(trueTime(agent), now)
	}
	if agent.CheckinInterval != nil {
		b.interval = agent.CheckinInterval.Duration
	}
	return b
}

// trueTime is when the agent last checked in, as far as its own word and its own knowledge of its clock tell.
func trueTime(agent fleet.AgentStatus) time.Time {
	if agent.ClockSkew == nil {
		return agent.LastSeen.Time
	}
	return agent.LastSeen.Add(-agent.ClockSkew.Duration)
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// intervalOf is how often the agent of the beat checks in.
func (b beat) intervalOf(hub config.Hub) time.Duration {
	interval := b.interval
	if interval <= 0 {
		interval = hub.CheckinInterval()
	}
	return min(max(interval, shortestInterval), longestInterval)
}

// grace is how long after a beat the agent counts as connected.
func (b beat) grace(hub config.Hub) time.Duration {
	return time.Duration(hub.MissedCheckins()) * b.intervalOf(hub)
}

// deadline is the moment at which the agent is disconnected, if nothing is heard of it: a grace after its last beat, and a
// grace after the hub could hear it. A hub that was away has heard of nobody, and must not call everybody gone.
func (b beat) deadline(hub config.Hub, audible time.Time) time.Time {
	from := b.at
	if audible.After(from) {
		from = audible
	}
	return from.Add(b.grace(hub))
}

// judge says what the condition is to be, given what it was. While only the benefit of the doubt speaks for an agent, one
// that was connected stays so, and one that was not becomes it only by a beat.
func (b beat) judge(agent fleet.AgentStatus, before corev1.ConditionStatus, hub config.Hub, audible, now time.Time) result.Result {
	fresh := now.Before(b.at.Add(b.grace(hub)))
	doubtful := !fresh && now.Before(b.deadline(hub, audible))
	switch {
	case fresh, doubtful && before == corev1.ConditionTrue:
		return result.Done(fleet.ReasonConnected, fmt.Sprintf("the agent checks in every %s", b.intervalOf(hub)))
	case doubtful && before != corev1.ConditionFalse:
		return result.Wait(fleet.ReasonWaitingForHeartbeat, fmt.Sprintf(
			"the last check-in was at %s, before this hub could hear it; waiting for the next one", stampOf(agent)))
	}
	return result.Stalled(fleet.ReasonDisconnected, fmt.Sprintf(
		"no check-in since %s; the agent is to check in every %s and may miss %d", stampOf(agent), b.intervalOf(hub), hub.MissedCheckins()))
}

// stampOf is the same in every pass until the next beat, so that a cluster that is gone costs no more writes.
func stampOf(agent fleet.AgentStatus) string { return trueTime(agent).UTC().Format(time.RFC3339) }
