package liveness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const (
	yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	absent           = corev1.ConditionStatus("")

	grace = 45 * time.Minute // of the default configuration
	tick  = time.Nanosecond
)

func seen(at time.Time) fleet.AgentStatus { return fleet.AgentStatus{LastSeen: metav1.NewTime(at)} }

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func TestHeartbeatBeforeStart(t *testing.T) {
	ahead, behind := seen(noon.Add(2*time.Hour)), seen(noon.Add(-2*time.Hour))
	ahead.ClockSkew, behind.ClockSkew = duration(2*time.Hour+time.Minute), duration(-2*time.Hour)
	now := noon.Add(time.Minute)
	for _, row := range []struct {
		name  string
		agent fleet.AgentStatus
		at    time.Time
	}{
		{"clock in time", seen(noon), noon},
		{"clock ahead", ahead, noon.Add(-time.Minute)},
		{"clock behind", behind, noon},
		{"time in the future", seen(noon.Add(time.Hour)), now},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.at, heartbeatBeforeStart(&row.agent, now).at)
		})
	}
}

func TestAgentRecord_last(t *testing.T) {
	at := func(minutes time.Duration) receivedHeartbeat {
		return receivedHeartbeat{lastSeen: metav1.NewTime(noon), at: noon.Add(minutes * time.Minute)}
	}
	for _, row := range []struct {
		name              string
		byLease, byStatus receivedHeartbeat
		usesLease         bool
	}{
		{"none", receivedHeartbeat{}, receivedHeartbeat{}, false},
		{"a Lease alone", at(1), receivedHeartbeat{}, true},
		{"the status alone", receivedHeartbeat{}, at(1), false},
		{"the Lease is later", at(2), at(1), true},
		{"the status is later", at(1), at(2), false},
		{"the status is a copy of the Lease", at(1), at(1), true},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := &agentRecord{byLease: row.byLease, byStatus: row.byStatus}
			assert.Equal(t, row.usesLease, r.usesLease())
			assert.Equal(t, row.usesLease, r.last() == r.byLease && !r.byLease.at.IsZero())
		})
	}
}

func TestGracePeriod(t *testing.T) {
	for _, row := range []struct {
		name     string
		reported time.Duration
		hub      config.Hub
		grace    time.Duration
	}{
		{name: "default", grace: 45 * time.Minute},
		{name: "the hub's interval", hub: config.Hub{AgentCheckinInterval: *duration(time.Minute)}, grace: 3 * time.Minute},
		{name: "the agent's interval", reported: 10 * time.Second, hub: config.Hub{AgentCheckinInterval: *duration(time.Hour)}, grace: 30 * time.Second},
		{name: "the hub's missed check-ins", reported: time.Minute, hub: config.Hub{AgentMissedCheckins: 10}, grace: 10 * time.Minute},
		{name: "too short an interval", reported: time.Microsecond, grace: 3 * time.Second},
		{name: "too long an interval", reported: 1000 * time.Hour, grace: 72 * time.Hour},
		{name: "negative interval", reported: -time.Second, grace: 45 * time.Minute},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.grace, receivedHeartbeat{interval: row.reported}.gracePeriod(row.hub))
		})
	}
}

func TestConnected(t *testing.T) {
	start := noon.Add(-24 * time.Hour)
	for _, row := range []struct {
		name      string
		before    corev1.ConditionStatus
		reachable time.Time
		after     time.Duration // the heartbeat
		want      corev1.ConditionStatus
		reason    string
	}{
		{"at the heartbeat", unknown, start, 0, yes, fleet.ReasonConnected},
		{"at the heartbeat of a disconnected agent", no, start, 0, yes, fleet.ReasonConnected},
		{"just before the end of the grace period", yes, start, grace - tick, yes, fleet.ReasonConnected},
		{"at the end of the grace period", yes, start, grace, no, fleet.ReasonDisconnected},
		{"long after", no, start, 10 * grace, no, fleet.ReasonDisconnected},
		{"long after, no condition", absent, start, 10 * grace, no, fleet.ReasonDisconnected},

		{"hub just started: connected agent stays connected", yes, noon.Add(grace), grace, yes, fleet.ReasonConnected},
		{"hub started: just before the deadline", yes, noon.Add(grace), 2*grace - tick, yes, fleet.ReasonConnected},
		{"hub started: at the deadline", yes, noon.Add(grace), 2 * grace, no, fleet.ReasonDisconnected},
		{"hub just started: disconnected agent stays disconnected", no, noon.Add(grace), grace, no, fleet.ReasonDisconnected},
		{"hub just started: no condition", absent, noon.Add(grace), grace, unknown, fleet.ReasonWaitingForHeartbeat},
		{"hub started: unknown until the deadline", unknown, noon.Add(grace), 2*grace - tick, unknown, fleet.ReasonWaitingForHeartbeat},
		{"hub started: disconnected at the deadline", unknown, noon.Add(grace), 2 * grace, no, fleet.ReasonDisconnected},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := receivedHeartbeat{lastSeen: metav1.NewTime(noon), at: noon}
			out := b.connected(nil, row.before, config.Hub{}, row.reachable, noon.Add(row.after))
			assert.Equal(t, row.want, out.Status())
			assert.Equal(t, row.reason, out.Reason)
			assert.NoError(t, out.Err)
		})
	}
}

func TestConnected_stableMessages(t *testing.T) {
	b := receivedHeartbeat{lastSeen: metav1.NewTime(noon.Add(time.Hour)), at: noon}
	says := func(before corev1.ConditionStatus, reachable time.Time, now time.Time) string {
		return b.connected(duration(time.Hour), before, config.Hub{}, reachable, now).Message
	}
	assert.Equal(t, "the agent sends a heartbeat every 15m0s", says(yes, noon, noon))
	assert.Equal(t, says(yes, noon, noon), says(yes, noon.Add(grace), noon.Add(grace)), "an unknown state is no transition")
	gone := says(yes, noon, noon.Add(grace))
	assert.Equal(t, "no heartbeat since 2026-01-02T12:00:00Z, for more than 3 intervals of 15m0s", gone)
	assert.Equal(t, gone, says(no, noon, noon.Add(24*time.Hour)))
}
