package clusterregistration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

func TestTheEventOfItsOwnGrantIsToldFromAllOthers(t *testing.T) {
	version := func(uid, version string, granted bool) *fleet.ClusterRegistration {
		return &fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", UID: types.UID(uid), ResourceVersion: version},
			Status:     fleet.ClusterRegistrationStatus{Granted: granted, ClusterName: "member"},
		}
	}
	cluster := somePass().cluster
	h := &handler{Context: &app.Context{Clock: clock.RealClock{}, Metrics: metrics.New(nil)}, known: knownCluster{cluster: cluster}}
	h.noteGrant(version("a", "7", false), version("a", "8", true))
	h.noteGrant(version("b", "7", false), version("b", "8", true))
	h.noteGrant(version("c", "7", false), version("c", "8", false))
	h.noteGrant(version("d", "7", true), version("d", "8", true))

	assert.True(t, h.isOwnGrant(version("a", "8", true)))
	assert.False(t, h.isOwnGrant(version("a", "8", true)), "the next look is a real one")
	assert.False(t, h.isOwnGrant(version("b", "9", true)), "somebody has written since")
	assert.False(t, h.isOwnGrant(version("b", "8", true)))
	assert.False(t, h.isOwnGrant(version("c", "8", false)), "it is not granted")
	assert.False(t, h.isOwnGrant(version("d", "8", true)), "it was granted before")

	cluster.Spec.Quarantined = true
	h.noteGrant(version("e", "7", false), version("e", "8", true))
	assert.False(t, h.isOwnGrant(version("e", "8", true)), "the look is the quarantine's too, and that does not wait")
}

// knownCluster is the cache with one Cluster.
type knownCluster struct {
	fleetcontrollers.ClusterCache
	cluster *fleet.Cluster
}

func (k knownCluster) Get(namespace, name string) (*fleet.Cluster, error) {
	if k.cluster.Namespace != namespace || k.cluster.Name != name {
		return nil, orNotFound(nil, name)
	}
	return k.cluster, nil
}
