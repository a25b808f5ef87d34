package credentialstatus

import (
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestExpired(t *testing.T) {
	const connected, silent = corev1.ConditionTrue, corev1.ConditionFalse
	end := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		name      string
		connected corev1.ConditionStatus
		seen      bool
		expires   *metav1.Time
		now       time.Time
		want      bool
		in        time.Duration
	}{
		{"silent, long after", silent, true, &metav1.Time{Time: end}, end.Add(time.Hour), true, 0},
		{"silent, after the tolerated difference of the clocks", silent, true, &metav1.Time{Time: end}, end.Add(time.Minute), true, 0},
		{"silent, at the end itself", silent, true, &metav1.Time{Time: end}, end, false, time.Minute},
		{"silent, before the end", silent, true, &metav1.Time{Time: end}, end.Add(-time.Hour), false, time.Hour + time.Minute},
		{"connected: the agent has renewed the credential", connected, true, &metav1.Time{Time: end}, end.Add(time.Hour), false, 0},
		{"not known whether it is connected", corev1.ConditionUnknown, true, &metav1.Time{Time: end}, end.Add(time.Hour), false, 0},
		{"installed again, and no heartbeat since", silent, false, &metav1.Time{Time: end}, end.Add(time.Hour), false, 0},
		{"a credential that does not end", silent, true, nil, end.Add(time.Hour), false, 0},
	} {
		c := &fleet.Cluster{}
		c.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: row.connected}}
		c.Status.Agent.CredentialExpires = row.expires
		if row.seen {
			c.Status.Agent.LastSeen = metav1.Time{Time: end.Add(-2 * time.Hour)}
		}
		assert.Equal(t, row.want, Expired(c, row.now), row.name)
		assert.Equal(t, row.in, ExpiryIn(c, row.now), row.name)
		c.Spec.Quarantined = true
		assert.False(t, Expired(c, row.now), row.name)
	}
}
