package liveness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/config"
)

// The agent's own clock is an hour slow, so that its word alone would have it away for long.
func TestAHubThatTakesOverHasHeardTheBeats(t *testing.T) {
	slow := func(d *day) metav1.Time { return metav1.NewTime(d.clock.Now().Add(-time.Hour)) }
	for name, test := range map[string]struct {
		observes bool
		want     corev1.ConditionStatus
	}{
		"it has listened":     {true, corev1.ConditionTrue},
		"it has not listened": {false, corev1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDay(t, config.Hub{})
			if test.observes {
				d.Observe(d.cluster)
			}
			d.clock.Step(24 * time.Hour) // it could hear for long
			d.cluster.Status.Agent.LastSeen = slow(d)
			if test.observes {
				d.Observe(d.cluster)
			}
			d.clock.Step(time.Minute)
			got, _ := d.pass()
			assert.Equal(t, test.want, got)
		})
	}
}
