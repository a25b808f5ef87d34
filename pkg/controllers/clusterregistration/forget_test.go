package clusterregistration

import (
	"fmt"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// bin is a queue that takes deletions too, by the UID of what is deleted.
type bin struct {
	queue
	deleted map[string]types.UID
	err     error
}

func (b bin) Delete(_, name string, o *metav1.DeleteOptions) error {
	if b.err == nil {
		b.deleted[name] = *o.Preconditions.UID
	}
	return b.err
}

func newBin() bin {
	return bin{queue: queue{delays: map[string]time.Duration{}}, deleted: map[string]types.UID{}}
}

// refusedRequest is that of somePass, refused, of another name and age.
func refusedRequest(name string, age time.Duration) *fleet.ClusterRegistration {
	r := judged().request
	r.Name, r.UID, r.CreationTimestamp = name, types.UID(name+"-uid"), metav1.NewTime(noon.Add(-age))
	r.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionGranted, Status: corev1.ConditionFalse, Reason: fleet.ReasonClientIDInUse}}
	return r
}

func TestWhatWasRefusedIsFoundByWhoeverSentIt(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*fleet.ClusterRegistration)
		want   []string
	}{
		{"refused", func(*fleet.ClusterRegistration) {}, []string{"fleet-default/" + tokenUser}},
		{"nobody knows by whom", func(r *fleet.ClusterRegistration) { r.Annotations = nil }, []string{"fleet-default/"}},
		{"granted", func(r *fleet.ClusterRegistration) { r.Status.Granted = true }, nil},
		{"waiting", func(r *fleet.ClusterRegistration) { r.Status.Conditions[0].Status = corev1.ConditionUnknown }, nil},
		{"new", func(r *fleet.ClusterRegistration) { r.Status.Conditions = nil }, nil},
		{"in trouble, which passes", func(r *fleet.ClusterRegistration) { r.Status.Conditions[0].Reason = fleet.ReasonError }, nil},
	} {
		r := refusedRequest("r", 0)
		row.change(r)
		got, err := creatorOfRefused(r)
		require.NoError(t, err)
		assert.Equal(t, row.want, got, row.name)
	}
}

func TestARefusedRequestStaysForAWhile(t *testing.T) {
	stalled := result.Stalled(fleet.ReasonClientIDInUse, "")
	for _, row := range []struct {
		name   string
		age    time.Duration
		out    result.Result
		change func(*fleet.ClusterRegistration)
		gone   bool
		again  time.Duration
	}{
		{"new", time.Minute, stalled, nil, false, registration.RefusedLifetime - time.Minute},
		{"old", registration.RefusedLifetime, stalled, nil, true, 0},
		{"old, but nobody refuses it any more", registration.RefusedLifetime, result.Wait("", ""), nil, false, 0},
		{"old, and denied by a person", registration.RefusedLifetime, stalled, func(r *fleet.ClusterRegistration) {
			r.Status.Approval = &fleet.RegistrationApproval{Decision: fleet.DecisionDenied}
		}, false, 0},
		{"old, granted before, and revoked", registration.RefusedLifetime, stalled, func(r *fleet.ClusterRegistration) { r.Status.Granted = true }, false, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, b, r := judged(), newBin(), refusedRequest("r", row.age)
			if row.change != nil {
				row.change(r)
			}
			p.requests, p.cache = b, requestsOf{}
			require.NoError(t, p.forget(r, row.out))
			assert.Equal(t, row.gone, b.deleted["r"] == "r-uid")
			assert.Equal(t, row.again, b.delays["fleet-default/r"])
		})
	}
}

func TestOfAFloodOfRefusedRequestsTheOldestGo(t *testing.T) {
	p, b := judged(), newBin()
	var all []*fleet.ClusterRegistration
	for n := range registration.MostRefused + 2 {
		all = append(all, refusedRequest(fmt.Sprintf("r-%04d", n), time.Hour-time.Duration(n)*time.Second))
	}
	all[0].DeletionTimestamp = &metav1.Time{Time: noon}
	p.requests, p.cache = b, requestsOf{all: all}
	latest := refusedRequest("latest", 0)
	require.NoError(t, p.forget(latest, result.Stalled(fleet.ReasonTokenUsedUp, "")))
	assert.Equal(t, map[string]types.UID{"r-0001": "r-0001-uid", "r-0002": "r-0002-uid"}, b.deleted, "one is going already")

	b.err = errBadDay
	p.requests = b
	require.ErrorIs(t, p.forget(latest, result.Stalled(fleet.ReasonTokenUsedUp, "")), errBadDay)
	p.cache = requestsOf{err: errBadDay}
	require.ErrorIs(t, p.forget(latest, result.Stalled(fleet.ReasonTokenUsedUp, "")), errBadDay)
}
