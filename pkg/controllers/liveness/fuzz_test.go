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

// An agent may report any clock skew and interval; the hub's clock decides.
func FuzzHeartbeat(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(0), 3, byte(0))
	f.Add(int64(-1<<62), int64(1<<62), int64(-5), int64(10), 2, byte(1))
	f.Add(int64(900), int64(15*time.Minute), int64(60), int64(3000), 0, byte(2))
	f.Fuzz(func(t *testing.T, seen, interval, skew, later int64, missed int, was byte) {
		now := time.Unix(1_800_000_000, 0)
		agent := fleet.AgentStatus{
			LastSeen:        metav1.NewTime(now.Add(time.Duration(seen % 1e6 * int64(time.Second)))),
			CheckinInterval: &metav1.Duration{Duration: time.Duration(interval)}, ClockSkew: &metav1.Duration{Duration: time.Duration(skew)},
		}
		hub := config.Hub{AgentMissedCheckins: 2 + max(missed, -missed)%10}
		before := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}[was%3]
		b := heartbeatBeforeStart(&agent, now)
		assert.False(t, b.at.After(now), "a heartbeat in the future")
		assert.GreaterOrEqual(t, b.gracePeriod(hub), 2*minInterval)
		assert.LessOrEqual(t, b.gracePeriod(hub), 12*maxInterval)

		at := now.Add(time.Duration(max(later, -later) % 1e6 * int64(time.Second)))
		decided := b.connected(agent.ClockSkew, before, hub, now, at)
		assert.Equal(t, decided, b.connected(agent.ClockSkew, before, hub, now, at))
		if at.Before(b.deadline(hub, now)) && before == corev1.ConditionTrue {
			assert.NotEqual(t, fleet.ReasonDisconnected, decided.Reason, "disconnected before the deadline")
		}
		if !at.Before(b.deadline(hub, now)) {
			assert.Equal(t, fleet.ReasonDisconnected, decided.Reason)
		}
	})
}
