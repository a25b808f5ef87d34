package attacks

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A tenant who may create Namespaces creates the namespace of a Cluster before the hub does, with all labels and annotations of the hub. The
// creator may have rights in it, so the hub creates neither a ServiceAccount nor Roles in it, and reports that.
func TestNamespaceMadeBeforehand(t *testing.T) {
	s := testenv.NewStage(t)
	values := s.Token(t, "shared")
	for name, clientID := range map[string]string{"as the hub makes it": "first", "with a key": "second"} {
		t.Run(name, func(t *testing.T) {
			cluster := registration.ClusterName(clientID)
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: registration.ClusterNamespace(s.Namespace, cluster), Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
				Annotations: map[string]string{fleet.ClusterAnnotation: cluster, fleet.ClusterNamespaceAnnotation: s.Namespace},
			}}
			if clientID == "second" {
				namespace.Annotations[fleet.NamespaceKeyAnnotation] = "chosen"
			}
			namespaces := s.Hub.Kubernetes.CoreV1().Namespaces()
			namespace = testenv.Create(t, namespaces.Create, namespace)

			request := sends(t, s, values, with("shared", clientID, clientID+s.Namespace))
			s.Hub.WaitCondition(t, testenv.KindCluster, s.Namespace, cluster, fleet.ConditionProcessed, "False NameConflict:")
			warned(t, s, cluster, fleet.ReasonNameConflict)
			assert.Empty(t, s.Cluster(t, cluster).Status.Namespace)
			assert.Empty(t, accounts(t, s, request), "the tenant could request its token")

			// The hub creates the Namespace when the Namespace of the tenant is gone, and grants the request.
			require.NoError(t, namespaces.Delete(t.Context(), namespace.Name, metav1.DeleteOptions{}))
			granted, _ := s.Hub.Granted(t, values, request)
			assert.Equal(t, cluster, granted.Status.ClusterName)
			made := testenv.RequireThere(t, namespaces.Get, namespace.Name)
			assert.NotEqual(t, namespace.UID, made.UID)
			assert.NotEqual(t, "chosen", made.Annotations[fleet.NamespaceKeyAnnotation])
		})
	}
}
