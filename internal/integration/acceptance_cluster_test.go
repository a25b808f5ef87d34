package integration

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

func TestAClusterGetsTheNamespaceOfTheFormula(t *testing.T) {
	s := newStage(t)
	s.createCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}, Spec: fleet.ClusterSpec{ClientID: "c1"}})

	cluster := s.hub.ClusterCondition(t, s.namespace, "c1", fleet.ConditionProcessed, "True Processed")
	want := "cluster-" + s.namespace + "-c1-" + registration.KeyHash(s.namespace+"::c1")
	assert.Equal(t, want, cluster.Status.Namespace)
	assert.Contains(t, cluster.Finalizers, fleet.ClusterFinalizer)
	namespace := requireThere(t, s.hub.Kubernetes.CoreV1().Namespaces().Get, want)
	assert.Equal(t, "true", namespace.Labels["fleet.cattle.io/managed"])
	assert.Equal(t, map[string]string{
		"fleet.cattle.io/cluster":           "c1",
		"fleet.cattle.io/cluster-namespace": s.namespace,
	}, namespace.Annotations)
}

func TestAClusterManagedElsewhereIsLeftAloneAndSaysSo(t *testing.T) {
	s := newStage(t)
	s.createCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: map[string]string{"fleet.cattle.io/cluster-management": "other"}},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: "kubeconfig"},
	})

	cluster := s.hub.ClusterCondition(t, s.namespace, "theirs", fleet.ConditionProcessed, "True ManagedElsewhere")
	assert.Len(t, cluster.Status.Conditions, 1, "nothing but Processed")
	assert.Empty(t, cluster.Status.Namespace)
	assert.Empty(t, cluster.Finalizers)
	assert.Empty(t, cluster.Spec.ClientID)
	requireGone(t, s.hub.Kubernetes.CoreV1().Namespaces().Get, "Namespace", registration.ClusterNamespace(s.namespace, "theirs"))
}

func TestADeletedClusterLeavesNothingOnTheHub(t *testing.T) {
	s := newStage(t)
	values := s.token(t, "tok")
	r := s.register(t, values, "farewell", "random")
	name := r.request.Status.ClusterName
	_, err := s.hub.Fleet.Bundles(s.namespace).Create(t.Context(), &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{
			Name: "fleet-agent-" + name, Annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.awaitBundleKnown(t)

	require.NoError(t, s.hub.Fleet.Clusters(s.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))

	core := s.hub.Kubernetes.CoreV1()
	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", name)
	requireGone(t, s.hub.Fleet.Bundles(s.namespace).Get, "Bundle", "fleet-agent-"+name)
	requireGone(t, core.Namespaces().Get, "Namespace", r.clusterNamespace())
	s.requireRegistrationGone(t, r)
	requireUnauthorized(t, s.hub, r.bearer())
	assert.Empty(t, s.whatNames(t, name), "nothing labelled with the Cluster is left")
	requireThere(t, core.Secrets(s.namespace).Get, "tok")
}

// awaitBundleKnown waits until the hub has worked on something that came after the Bundle.
func (s *stage) awaitBundleKnown(t *testing.T) {
	t.Helper()
	s.createCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "marker"}})
	s.hub.ClusterCondition(t, s.namespace, "marker", fleet.ConditionProcessed, "True")
}

// requireRegistrationGone waits until a request and all it was given are gone.
func (s *stage) requireRegistrationGone(t *testing.T, r registered) {
	t.Helper()
	core, rbac := s.hub.Kubernetes.CoreV1(), s.hub.Kubernetes.RbacV1()
	reader := registration.CredentialReaderName(r.account())
	requireGone(t, s.hub.Fleet.ClusterRegistrations(s.namespace).Get, "ClusterRegistration", r.request.Name)
	requireGone(t, core.ServiceAccounts(r.clusterNamespace()).Get, "ServiceAccount", r.account())
	requireGone(t, rbac.Roles(s.namespace).Get, "Role", r.request.Name)
	requireGone(t, rbac.RoleBindings(s.namespace).Get, "RoleBinding", r.request.Name)
	requireGone(t, rbac.RoleBindings(r.clusterNamespace()).Get, "RoleBinding", r.request.Name)
	requireGone(t, rbac.ClusterRoleBindings().Get, "ClusterRoleBinding", registration.ContentBindingName(r.account()))
	requireGone(t, rbac.Roles(registrationNamespace).Get, "Role", reader)
	requireGone(t, rbac.RoleBindings(registrationNamespace).Get, "RoleBinding", reader)
	requireGone(t, core.Secrets(registrationNamespace).Get, "Secret", r.secret.Name)
}

// whatNames finds Secrets, ServiceAccounts and RBAC anywhere on the hub that are labelled or annotated with the Cluster.
func (s *stage) whatNames(t *testing.T, cluster string) (found []string) {
	t.Helper()
	add := func(kind string, m metav1.ObjectMeta) {
		if m.Labels[fleet.ClusterLabel] == cluster || m.Annotations[fleet.ClusterAnnotation] == cluster {
			found = append(found, kind+" "+m.Namespace+"/"+m.Name)
		}
	}
	managed := metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=true"}
	secrets, err := s.hub.Kubernetes.CoreV1().Secrets("").List(t.Context(), managed)
	require.NoError(t, err)
	for _, o := range secrets.Items {
		add("Secret", o.ObjectMeta)
	}
	accounts, err := s.hub.Kubernetes.CoreV1().ServiceAccounts("").List(t.Context(), managed)
	require.NoError(t, err)
	for _, o := range accounts.Items {
		add("ServiceAccount", o.ObjectMeta)
	}
	namespaces, err := s.hub.Kubernetes.CoreV1().Namespaces().List(t.Context(), managed)
	require.NoError(t, err)
	for _, o := range namespaces.Items {
		add("Namespace", o.ObjectMeta)
	}
	return found
}

func TestADeletedImportedClusterTakesItsTokenAlong(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.member.Namespace(t)
	s.hub.Import(t, s.namespace, "m", s.member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionImported, "True Imported")
	values := s.hub.Values(t, s.namespace, "import-token-m")

	require.NoError(t, s.hub.Fleet.Clusters(s.namespace).Delete(t.Context(), "m", metav1.DeleteOptions{}))

	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", "m")
	requireGone(t, s.hub.Fleet.ClusterRegistrationTokens(s.namespace).Get, "ClusterRegistrationToken", "import-token-m")
	requireGone(t, s.hub.Kubernetes.CoreV1().Secrets(s.namespace).Get, "Secret", "import-token-m")
	requireUnauthorized(t, s.hub, values.Token)
	testenv.Eventually(t, func() (bool, string) {
		left, err := s.hub.Kubernetes.CoreV1().ServiceAccounts(s.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=true"})
		return err == nil && len(left.Items) == 0, "ServiceAccounts of the token are left"
	})
}
