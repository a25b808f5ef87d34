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

func TestABeatIsWhenTheHubSawIt(t *testing.T) {
	old := beat{stamp: metav1.NewTime(noon), at: noon.Add(3 * time.Second)}
	skewed := seen(noon.Add(2 * time.Hour))
	skewed.ClockSkew = duration(2*time.Hour + time.Minute)
	slow := seen(noon.Add(-2 * time.Hour))
	slow.ClockSkew = duration(-2 * time.Hour)
	now := noon.Add(time.Minute)
	for _, row := range []struct {
		name  string
		last  beat
		known bool
		agent fleet.AgentStatus
		at    time.Time
	}{
		{name: "the one that is known", last: old, known: true, agent: seen(noon), at: old.at},
		{name: "a new one, of whatever clock", last: old, known: true, agent: seen(noon.Add(-5 * time.Hour)), at: now},
		{name: "the first one", last: beat{}, known: true, agent: seen(noon), at: now},
		{name: "one from before this hub", agent: seen(noon), at: noon},
		{name: "one from before this hub, of a clock that is ahead", agent: skewed, at: noon.Add(-time.Minute)},
		{name: "one from before this hub, of a clock that is behind", agent: slow, at: noon},
		{name: "one of the future was now at the latest", agent: seen(noon.Add(time.Hour)), at: now},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.at, newBeat(row.last, row.known, row.agent, now).at)
		})
	}
}

func TestGraceIsThreeIntervalsOfTheAgentOrElseOfTheHub(t *testing.T) {
	for _, row := range []struct {
		name     string
		reported time.Duration
		hub      config.Hub
		grace    time.Duration
	}{
		{name: "nothing said", grace: 45 * time.Minute},
		{name: "the hub's interval", hub: config.Hub{AgentCheckinInterval: *duration(time.Minute)}, grace: 3 * time.Minute},
		{name: "the agent's interval", reported: 10 * time.Second, hub: config.Hub{AgentCheckinInterval: *duration(time.Hour)}, grace: 30 * time.Second},
		{name: "the hub's patience", reported: time.Minute, hub: config.Hub{AgentMissedCheckins: 10}, grace: 10 * time.Minute},
		{name: "an agent that says nothing sensible", reported: time.Microsecond, grace: 3 * time.Second},
		{name: "an agent that would never be missed", reported: 1000 * time.Hour, grace: 72 * time.Hour},
		{name: "a negative interval is none", reported: -time.Second, grace: 45 * time.Minute},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.grace, beat{interval: row.reported}.grace(row.hub))
		})
	}
}

func TestConnectedUntilExactlyTheEndOfTheGrace(t *testing.T) {
	start := noon.Add(-24 * time.Hour)
	for _, row := range []struct {
		name    string
		before  corev1.ConditionStatus
		audible time.Time
		after   time.Duration // the beat
		want    corev1.ConditionStatus
		reason  string
	}{
		{"at the beat", unknown, start, 0, yes, fleet.ReasonConnected},
		{"at the beat of one that was gone", no, start, 0, yes, fleet.ReasonConnected},
		{"just before the end", yes, start, grace - tick, yes, fleet.ReasonConnected},
		{"at the end", yes, start, grace, no, fleet.ReasonDisconnected},
		{"long after it", no, start, 10 * grace, no, fleet.ReasonDisconnected},
		{"long after it, of another release's Cluster", absent, start, 10 * grace, no, fleet.ReasonDisconnected},

		{"a hub that has just started does not call it gone", yes, noon.Add(grace), grace, yes, fleet.ReasonConnected},
		{"nor an instant before its own grace ends", yes, noon.Add(grace), 2*grace - tick, yes, fleet.ReasonConnected},
		{"but then it does", yes, noon.Add(grace), 2 * grace, no, fleet.ReasonDisconnected},
		{"what was gone before stays gone", no, noon.Add(grace), grace, no, fleet.ReasonDisconnected},
		{"what nobody judged before is not called connected", absent, noon.Add(grace), grace, unknown, fleet.ReasonWaitingForHeartbeat},
		{"and waits", unknown, noon.Add(grace), 2*grace - tick, unknown, fleet.ReasonWaitingForHeartbeat},
		{"but not for ever", unknown, noon.Add(grace), 2 * grace, no, fleet.ReasonDisconnected},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := beat{stamp: metav1.NewTime(noon), at: noon}
			out := b.judge(seen(noon), row.before, config.Hub{}, row.audible, noon.Add(row.after))
			assert.Equal(t, row.want, out.Status())
			assert.Equal(t, row.reason, out.Reason)
			assert.NoError(t, out.Err)
		})
	}
}

func TestMessagesStayTheSameFromPassToPass(t *testing.T) {
	agent := seen(noon.Add(time.Hour))
	agent.ClockSkew = duration(time.Hour)
	b := beat{stamp: agent.LastSeen, at: noon}
	says := func(before corev1.ConditionStatus, audible time.Time, now time.Time) string {
		return b.judge(agent, before, config.Hub{}, audible, now).Message
	}
	assert.Equal(t, "the agent checks in every 15m0s", says(yes, noon, noon))
	assert.Equal(t, says(yes, noon, noon), says(yes, noon.Add(grace), noon.Add(grace)), "the benefit of the doubt is no transition")
	gone := says(yes, noon, noon.Add(grace))
	assert.Equal(t, "no check-in since 2026-01-02T12:00:00Z; the agent is to check in every 15m0s and may miss 3", gone)
	assert.Equal(t, gone, says(no, noon, noon.Add(24*time.Hour)))
}
