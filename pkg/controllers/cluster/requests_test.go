package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// deletions notes which requests are deleted.
type deletions struct {
	fleetcontrollers.Interface
	fleetcontrollers.ClusterRegistrationController
	names []string
	err   error
}

func (d *deletions) ClusterRegistration() fleetcontrollers.ClusterRegistrationController { return d }

func (d *deletions) Delete(_, name string, options *metav1.DeleteOptions) error {
	d.names = append(d.names, name+" "+string(*options.Preconditions.UID))
	return d.err
}

func TestADeletedClusterTakesItsOwnRequestsAndNoOthers(t *testing.T) {
	of := func(name string, owner types.UID) *fleet.ClusterRegistration {
		r := request(name, 0, "", "")
		r.UID = types.UID("uid-of-" + name)
		r.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", UID: owner}}
		return r
	}
	going := of("going", "mine")
	going.DeletionTimestamp = &metav1.Time{Time: noon}
	for _, row := range []struct {
		name string
		err  error
		done bool
	}{
		{"they are there", nil, true},
		{"somebody was faster", apierrors.NewNotFound(schema.GroupResource{}, "own"), true},
		{"the API server fails", errCause, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := &deletions{err: row.err}
			f := &farewell{
				handler: &handler{
					Context:  &app.Context{Fleet: d},
					requests: requests{all: []*fleet.ClusterRegistration{of("another's", "other"), of("own", "mine"), going}},
				},
				cluster: &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "mine"}, Spec: fleet.ClusterSpec{ClientID: "id"}},
			}
			assert.Equal(t, row.done, f.deleteRequests(t.Context()).IsDone())
			assert.Equal(t, []string{"own uid-of-own"}, d.names)
			assert.True(t, f.Left.Take(types.NamespacedName{Namespace: "ns", Name: "own"}), "its agent has left")
			assert.False(t, f.Left.Take(types.NamespacedName{Namespace: "ns", Name: "another's"}))
		})
	}
}

func TestAClusterIsLookedAtForTheFateOfARequestOnly(t *testing.T) {
	h := &handler{known: identities{byID: map[string]string{"ws/a": "alice", "ws/b": "bob"}}}
	asked := func(id string, change ...func(*fleet.ClusterRegistration)) *fleet.ClusterRegistration {
		r := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "r"}, Spec: fleet.ClusterRegistrationSpec{ClientID: id}}
		for _, f := range change {
			f(r)
		}
		return r
	}
	owned := func(r *fleet.ClusterRegistration) { r.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster"}} }
	granted := func(r *fleet.ClusterRegistration) { r.Status.Granted = true }
	for title, row := range map[string]struct {
		before, after *fleet.ClusterRegistration
		want          []string
	}{
		"it comes":                {nil, asked("a"), []string{"alice"}},
		"it goes":                 {asked("a"), nil, []string{"alice"}},
		"it is granted":           {asked("a"), asked("a", granted), []string{"alice"}},
		"it is given an owner":    {asked("a"), asked("a", owned), nil},
		"it is of another":        {asked("a"), asked("b"), []string{"alice", "bob"}},
		"nobody has its identity": {nil, asked("c"), nil},
	} {
		var got []string
		for _, key := range h.clustersOfRequest(row.before, row.after) {
			got = append(got, key.Name)
		}
		assert.Equal(t, row.want, got, title)
	}
}

// identities finds the name of the Cluster that has an identity.
type identities struct {
	fleetcontrollers.ClusterCache
	byID map[string]string
}

func (i identities) GetByIndex(_, key string) ([]*fleet.Cluster, error) {
	if name := i.byID[key]; name != "" {
		return []*fleet.Cluster{{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: name}}}, nil
	}
	return nil, nil
}
