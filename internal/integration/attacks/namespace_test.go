package attacks

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A tenant who may create Namespaces creates the namespace of a Cluster before the hub does, with all labels and annotations of the hub. The
// creator may have rights in it, so the hub creates neither a ServiceAccount nor Roles in it, and reports that.
func TestNamespaceMadeBeforehand(t *testing.T) {
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	for name, clientID := range map[string]string{"as the hub makes it": "first", "with a key": "second"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := registration.ClusterName(clientID)
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: registration.ClusterNamespace(s.Namespace, cluster), Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
				Annotations: map[string]string{fleet.ClusterAnnotation: cluster, fleet.WorkspaceAnnotation: s.Namespace},
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

// A tenant who may create ServiceAccounts in a workspace of his own gives one the label and the annotations with which the hub marks the
// ServiceAccount of a request of another workspace. The hub neither works on that request without end, nor leaves it without an answer.
func TestServiceAccountOfTheRequestOfOthers(t *testing.T) {
	sample.Long(t)
	s := testenv.EmptyStage(t)
	wire := &testenv.Recorder{}
	s.Running = s.Hub.Hub(t, wire.Wrap)
	values := s.Hub.Token(t, s.Namespace, "manual", fleet.ClusterRegistrationTokenSpec{Approval: fleet.ApprovalManual})
	request := sends(t, s, values, with("manual", "edge", "edge"+s.Namespace))
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, request.Name, fleet.ConditionGranted, "Unknown WaitingForApproval")

	tenant := s.Hub.Namespace(t)
	for name, cluster := range map[string]string{registration.RequestServiceAccount(request.Name, string(request.UID)): registration.ClusterName("edge"), "other": ""} {
		_, err := s.Hub.Kubernetes.CoreV1().ServiceAccounts(tenant).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
			Annotations: map[string]string{
				fleet.ClusterAnnotation: cluster, fleet.ClusterRegistrationAnnotation: request.Name, fleet.ClusterRegistrationNamespaceAnnotation: s.Namespace,
			},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	s.ImportInto(t, "later", "cattle-fleet-system") // the caches show the ServiceAccounts
	testenv.Merge(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Patch, request.Name, `{"status":{"approval":{"decision":"Denied"}}}`, "status")
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, request.Name, fleet.ConditionGranted, "False Denied:")
	wire.RequireQuiet(t, 20, "/clusterregistrations/"+request.Name)
}
