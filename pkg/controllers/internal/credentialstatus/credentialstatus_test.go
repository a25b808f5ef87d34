package credentialstatus

import (
	"errors"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
)

func request(uid string, minute int, granted bool, reason string) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(time.Unix(int64(minute)*60, 0))},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "id"},
		Status: fleet.ClusterRegistrationStatus{
			Granted: granted, Conditions: []genericcondition.GenericCondition{{Type: fleet.ConditionGranted, Reason: reason}},
		},
	}
}

func TestOf(t *testing.T) {
	void := func(uid string, minute int) *fleet.ClusterRegistration {
		return request(uid, minute, true, fleet.ReasonCredentialRevoked)
	}
	granted := request("g", 0, true, fleet.ReasonGranted)
	for _, row := range []struct {
		name      string
		clientID  string
		requests  []*fleet.ClusterRegistration
		granted   bool
		revoked   string
		undecided string
	}{
		{name: "no identity", requests: []*fleet.ClusterRegistration{granted}},
		{name: "no request", clientID: "id"},
		{name: "one that waits", clientID: "id", requests: []*fleet.ClusterRegistration{request("w", 0, false, fleet.ReasonWaitingForCluster)}, undecided: "w"},
		{name: "one that waits beside one that was granted", clientID: "id", requests: []*fleet.ClusterRegistration{request("w", 1, false, fleet.ReasonWaitingForCluster), granted}, granted: true},
		{name: "the newest of two that wait, and one that is void", clientID: "id", requests: []*fleet.ClusterRegistration{request("b", 2, false, ""), void("v", 3), request("a", 1, false, "")}, revoked: "v", undecided: "b"},
		{name: "one that was granted", clientID: "id", requests: []*fleet.ClusterRegistration{granted}, granted: true},
		{name: "one of Fleet's hub, which has no conditions", clientID: "id", requests: []*fleet.ClusterRegistration{request("o", 0, true, "")}, granted: true},
		{name: "one that is void", clientID: "id", requests: []*fleet.ClusterRegistration{void("v", 0)}, revoked: "v"},
		{name: "the newest of two", clientID: "id", requests: []*fleet.ClusterRegistration{void("new", 2), void("old", 1)}, revoked: "new"},
		{name: "the newest, in another order", clientID: "id", requests: []*fleet.ClusterRegistration{void("old", 1), void("new", 2)}, revoked: "new"},
		{name: "two of one moment", clientID: "id", requests: []*fleet.ClusterRegistration{void("b", 1), void("a", 1)}, revoked: "b"},
		{name: "a void one and one that works", clientID: "id", requests: []*fleet.ClusterRegistration{void("v", 2), granted}, granted: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Of(fakecache.With(row.requests...), &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: fleet.ClusterSpec{ClientID: row.clientID}})
			require.NoError(t, err)
			assert.Equal(t, row.granted, got.Granted)
			undecided := ""
			if got.NotGranted != nil {
				undecided = string(got.NotGranted.UID)
			}
			assert.Equal(t, row.undecided, undecided)
			if row.revoked == "" {
				assert.Nil(t, got.Revoked)
				return
			}
			require.NotNil(t, got.Revoked)
			assert.EqualValues(t, row.revoked, got.Revoked.UID)
		})
	}
}

func TestOfFails(t *testing.T) {
	_, err := Of(&fakecache.Cache[*fleet.ClusterRegistration]{Err: errors.New("out")}, &fleet.Cluster{Spec: fleet.ClusterSpec{ClientID: "id"}})
	require.ErrorContains(t, err, "out")
}

func TestLost(t *testing.T) {
	for _, row := range []struct {
		name      string
		seen      bool
		granted   bool
		connected corev1.ConditionStatus
		want      bool
	}{
		{"silent, without request", true, false, corev1.ConditionFalse, true},
		{"silent, with request", true, true, corev1.ConditionFalse, false},
		{"heard of", true, false, corev1.ConditionTrue, false},
		{"nobody knows yet", true, false, "", false},
		{"never heard of", false, false, corev1.ConditionFalse, false},
	} {
		c := &fleet.Cluster{}
		c.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: row.connected}}
		if row.seen {
			c.Status.Agent.LastSeen = metav1.Now()
		}
		assert.Equal(t, row.want, Status{Granted: row.granted}.LostRegistration(c), row.name)
	}
}

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
