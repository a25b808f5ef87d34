package clusterregistration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// liveCluster is the only Cluster on the API server, or none.
type liveCluster struct {
	fleetcontrollers.ClusterController
	*fleet.Cluster
	err error
}

func (o liveCluster) Get(namespace, name string, _ metav1.GetOptions) (*fleet.Cluster, error) {
	if o.Namespace != namespace || o.Name != name {
		return nil, notFound(name)
	}
	return o.Cluster, o.err
}

func TestRemoveUnlessNeeded(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*scene, *corev1.ServiceAccount)
		needed bool
	}{
		{"the agent is leaving", func(*scene, *corev1.ServiceAccount) {}, true},
		{"the Cluster stays", func(s *scene, _ *corev1.ServiceAccount) { s.cluster.DeletionTimestamp = nil }, false},
		{"the agent has left", func(s *scene, _ *corev1.ServiceAccount) { s.cluster.Finalizers = []string{"other"} }, false},
		{"the hub itself deleted the request after the agent had left", func(s *scene, _ *corev1.ServiceAccount) { s.DeletedRequests.Add(requestKey) }, false},
		{"the Cluster is gone", func(s *scene, _ *corev1.ServiceAccount) { s.cluster.Name = "other" }, false},
		{"the ServiceAccount is of another request", func(_ *scene, a *corev1.ServiceAccount) {
			a.Annotations[fleet.ClusterRegistrationAnnotation] = "request-other"
		}, false},
		{"there is no ServiceAccount", func(_ *scene, a *corev1.ServiceAccount) { a.Annotations = nil }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := given(t)
			s.cluster.DeletionTimestamp, s.cluster.Finalizers = &metav1.Time{Time: noon}, []string{fleet.ClusterFinalizer}
			account := s.account()
			s.agents.Accounts, s.agents.Clusters = accountsOf{all: []*corev1.ServiceAccount{account}}, liveCluster{Cluster: s.cluster}
			row.change(s, account)
			_, err := s.onChange(requestKey.String(), nil)
			require.NoError(t, err)
			assert.Equal(t, !row.needed, s.revoked())
			if row.needed {
				assert.Equal(t, map[string]time.Duration{requestKey.String(): leavingPoll}, s.delays)
			}
		})
	}
	for name, breaks := range map[string]func(*scene){
		"the ServiceAccounts": func(s *scene) { s.agents.Accounts = accountsOf{err: errTest} },
		"the Cluster":         func(s *scene) { s.agents.Clusters = liveCluster{Cluster: s.cluster, err: errTest} },
	} {
		t.Run("nothing is deleted after an error of "+name, func(t *testing.T) {
			s := given(t)
			s.agents.Accounts, s.agents.Clusters = s.accounts, liveCluster{Cluster: s.cluster}
			breaks(s)
			require.ErrorIs(t, s.removeUnlessNeeded(t.Context(), requestKey.String()), errTest)
			assert.False(t, s.revoked())
		})
	}
}
