package rancher

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/rancherlike"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// reads counts how often the hub reads one object.
type reads struct {
	path string
	n    atomic.Int64
}

func (r *reads) count(next http.RoundTripper, request *http.Request) (*http.Response, error) {
	response, err := next.RoundTrip(request)
	if request.Method == http.MethodGet && request.URL.Path == r.path {
		r.n.Add(1)
	}
	return response, err
}

// specFieldsOf are the fields of the spec that the manager owns.
func specFieldsOf(t *testing.T, cluster *fleet.Cluster, manager string) []string {
	t.Helper()
	fields := []string{}
	for _, entry := range cluster.ManagedFields {
		if entry.Manager != manager || entry.FieldsV1 == nil {
			continue
		}
		var owned map[string]map[string]any
		require.NoError(t, json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned))
		for field := range owned["f:spec"] {
			fields = append(fields, field)
		}
	}
	return fields
}

func (s *serverStory) credentialsOnHub(t *testing.T) []corev1.Secret {
	t.Helper()
	secrets := testenv.List(t, s.hub.Kubernetes.CoreV1().Secrets("").List, metav1.ListOptions{FieldSelector: "type=" + registration.SecretTypeAnswer})
	return secrets.Items
}

func (s *serverStory) cluster(t *testing.T, m *rancherlike.Managed) *fleet.Cluster {
	t.Helper()
	cluster := testenv.RequireThere(t, s.hub.Fleet.Clusters(m.Workspace).Get, m.Name)
	return cluster
}

func (s *serverStory) condition(t *testing.T, m *rancherlike.Managed, condition, want string) *fleet.Cluster {
	t.Helper()
	return s.hub.ClusterCondition(t, m.Workspace, m.Name, condition, want)
}

// requests are the ClusterRegistrations of a cluster's agent.
func (s *serverStory) requests(t *testing.T, m *rancherlike.Managed) []string {
	t.Helper()
	return s.requestsOf(t, s.cluster(t, m))
}

func (s *serverStory) requestsOf(t *testing.T, cluster *fleet.Cluster) (names []string) {
	t.Helper()
	all := testenv.List(t, s.hub.Fleet.ClusterRegistrations(cluster.Namespace).List, metav1.ListOptions{})
	for _, request := range all.Items {
		if request.Spec.ClientID == cluster.Spec.ClientID {
			names = append(names, "ClusterRegistration "+request.Name)
		}
	}
	return names
}

func (s *serverStory) credential(t *testing.T, member *testenv.Cluster, namespace string) *corev1.Secret {
	t.Helper()
	secret := testenv.RequireThere(t, member.Kubernetes.CoreV1().Secrets(namespace).Get, registration.CredentialSecret)
	return secret
}

// address is the hub's address in the credential of an agent.
func (s *serverStory) address(t *testing.T, member *testenv.Cluster, namespace string) string {
	t.Helper()
	stored, err := clientcmd.RESTConfigFromKubeConfig(s.credential(t, member, namespace).Data[registration.CredentialKubeconfig])
	require.NoError(t, err)
	return stored.Host
}

// awaitBeat waits for a heartbeat that is newer than the call.
func (s *serverStory) awaitBeat(t *testing.T, m *rancherlike.Managed) {
	t.Helper()
	cluster := s.cluster(t, m)
	s.hub.AwaitHeartbeat(t, cluster.Namespace, cluster.Name, time.Now())
}
