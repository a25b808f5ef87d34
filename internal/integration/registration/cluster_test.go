package registration

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestClusterNamespace(t *testing.T) {
	s := newStage(t)
	s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}, Spec: fleet.ClusterSpec{ClientID: "c1"}})

	cluster := s.Hub.ClusterCondition(t, s.Namespace, "c1", fleet.ConditionProcessed, "True Processed")
	want := "cluster-" + s.Namespace + "-c1-" + registration.KeyHash(s.Namespace+"::c1")
	assert.Equal(t, want, cluster.Status.Namespace)
	assert.Contains(t, cluster.Finalizers, fleet.ClusterFinalizer)
	namespace := testenv.RequireThere(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, want)
	assert.Equal(t, "true", namespace.Labels["fleet.cattle.io/managed"])
	assert.Equal(t, map[string]string{
		"fleet.cattle.io/cluster":           "c1",
		"fleet.cattle.io/cluster-namespace": s.Namespace,
	}, namespace.Annotations)
}

func TestClusterManagedElsewhere(t *testing.T) {
	s := newStage(t)
	s.CreateCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: map[string]string{"fleet.cattle.io/cluster-management": "other"}},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: "kubeconfig"},
	})

	cluster := s.Hub.ClusterCondition(t, s.Namespace, "theirs", fleet.ConditionProcessed, "True ManagedElsewhere")
	assert.Len(t, cluster.Status.Conditions, 1, "nothing but Processed")
	assert.Empty(t, cluster.Status.Namespace)
	assert.Empty(t, cluster.Finalizers)
	assert.Empty(t, cluster.Spec.ClientID)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, "Namespace", registration.ClusterNamespace(s.Namespace, "theirs"))
}

func TestDeleteCluster(t *testing.T) {
	s := newStage(t)
	values := s.Token(t, "tok")
	r := s.Register(t, values, "farewell", "random")
	name := r.Request.Status.ClusterName
	_, err := s.Hub.Fleet.Bundles(s.Namespace).Create(t.Context(), &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{
			Name: "fleet-agent-" + name, Annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.AwaitWork(t, "marker")

	require.NoError(t, s.Hub.Fleet.Clusters(s.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))

	core := s.Hub.Kubernetes.CoreV1()
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)
	testenv.RequireGone(t, s.Hub.Fleet.Bundles(s.Namespace).Get, "Bundle", "fleet-agent-"+name)
	testenv.RequireGone(t, core.Namespaces().Get, "Namespace", r.ClusterNamespace())
	s.requireRegistrationGone(t, r)
	testenv.RequireUnauthorized(t, s.Hub, r.Bearer())
	assert.Empty(t, s.whatNames(t, name), "nothing labelled with the Cluster is left")
	testenv.RequireThere(t, core.Secrets(s.Namespace).Get, "tok")
}

// requireRegistrationGone waits until a request and all objects that were created for it are deleted.
func (s *stage) requireRegistrationGone(t *testing.T, r testenv.Registered) {
	t.Helper()
	core, rbac := s.Hub.Kubernetes.CoreV1(), s.Hub.Kubernetes.RbacV1()
	reader := registration.CredentialReaderName(r.Account())
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", r.Request.Name)
	testenv.RequireGone(t, core.ServiceAccounts(r.ClusterNamespace()).Get, "ServiceAccount", r.Account())
	testenv.RequireGone(t, rbac.Roles(s.Namespace).Get, "Role", r.Request.Name)
	testenv.RequireGone(t, rbac.RoleBindings(s.Namespace).Get, "RoleBinding", r.Request.Name)
	testenv.RequireGone(t, rbac.Roles(r.ClusterNamespace()).Get, "Role", registration.AgentRoleName(r.Account()))
	testenv.RequireGone(t, rbac.RoleBindings(r.ClusterNamespace()).Get, "RoleBinding", registration.AgentRoleName(r.Account()))
	testenv.RequireGone(t, rbac.RoleBindings(r.ClusterNamespace()).Get, "RoleBinding", registration.AgentBindingName(r.Account()))
	testenv.RequireGone(t, rbac.Roles(testenv.RegistrationNamespace).Get, "Role", reader)
	testenv.RequireGone(t, rbac.RoleBindings(testenv.RegistrationNamespace).Get, "RoleBinding", reader)
	testenv.RequireGone(t, core.Secrets(testenv.RegistrationNamespace).Get, "Secret", r.Secret.Name)
}

// whatNames finds all Secrets, ServiceAccounts and RBAC objects of the hub with a label or annotation that names the Cluster.
func (s *stage) whatNames(t *testing.T, cluster string) (found []string) {
	t.Helper()
	add := func(kind string, m metav1.ObjectMeta) {
		if m.Labels[fleet.ClusterLabel] == cluster || m.Annotations[fleet.ClusterAnnotation] == cluster {
			found = append(found, kind+" "+m.Namespace+"/"+m.Name)
		}
	}
	managed := metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=true"}
	secrets, err := s.Hub.Kubernetes.CoreV1().Secrets("").List(t.Context(), managed)
	require.NoError(t, err)
	for _, o := range secrets.Items {
		add("Secret", o.ObjectMeta)
	}
	accounts, err := s.Hub.Kubernetes.CoreV1().ServiceAccounts("").List(t.Context(), managed)
	require.NoError(t, err)
	for _, o := range accounts.Items {
		add("ServiceAccount", o.ObjectMeta)
	}
	namespaces, err := s.Hub.Kubernetes.CoreV1().Namespaces().List(t.Context(), managed)
	require.NoError(t, err)
	for _, o := range namespaces.Items {
		add("Namespace", o.ObjectMeta)
	}
	return found
}

func TestDeleteImportedCluster(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	s.Hub.Import(t, s.Namespace, "m", s.Member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionImported, "True Imported")
	values := s.Hub.Values(t, s.Namespace, "import-token-m")

	require.NoError(t, s.Hub.Fleet.Clusters(s.Namespace).Delete(t.Context(), "m", metav1.DeleteOptions{}))

	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "m")
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Get, "ClusterRegistrationToken", "import-token-m")
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Secrets(s.Namespace).Get, "Secret", "import-token-m")
	testenv.RequireUnauthorized(t, s.Hub, values.Token)
	testenv.Eventually(t, func() (bool, string) {
		left, err := s.Hub.Kubernetes.CoreV1().ServiceAccounts(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=true"})
		return err == nil && len(left.Items) == 0, "ServiceAccounts of the token are left"
	})
}
