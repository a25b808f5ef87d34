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
