package imports

import (
	"fmt"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/rancher/wrangler/v3/pkg/name"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/muster-fleet/muster/internal/inventory"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// fleetCluster is a cluster that was imported and registered by Fleet's own controllers, as they leave it on the hub.
type fleetCluster struct {
	*stage
	cluster                    *fleet.Cluster
	request                    *fleet.ClusterRegistration
	token                      *fleet.ClusterRegistrationToken
	clusterNamespace           string
	account, tokenAccount      string
	bearer, registrationBearer string
	agentNamespace             string
}

// unsetEnvHash is what Fleet's hub stores in status.agentEnvVarsHash of a Cluster without agentEnvVars.
const unsetEnvHash = "a7408a8b23aff882d8b95165eb24c3a6b519468539eb2b3072f529cb"

// newFleetCluster creates the objects while no hub is running.
func newFleetCluster(t *testing.T) *fleetCluster {
	t.Helper()
	s := &fleetCluster{stage: &stage{testenv.EmptyStage(t)}}
	s.Hub.Hub(t).Stop(t) // installs the CRDs and the ClusterRoles, as Fleet's charts do
	s.agentNamespace = s.Member.Namespace(t)
	s.makeCluster(t)
	s.makeToken(t)
	s.makeRequest(t)
	s.makeAgent(t)
	return s
}

func (s *fleetCluster) makeCluster(t *testing.T) {
	t.Helper()
	s.Hub.WriteSecret(t, s.Namespace, "kubeconfig", map[string][]byte{"value": s.Member.Kubeconfig()})
	s.cluster = s.CreateCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "stock", Finalizers: []string{"fleet.cattle.io/cluster-finalizer"}},
		Spec: fleet.ClusterSpec{
			ClientID: "stock" + s.Namespace, KubeConfigSecret: "kubeconfig", AgentNamespace: s.agentNamespace, RedeployAgentGeneration: 3,
		},
	})
	s.clusterNamespace = registration.ClusterNamespace(s.Namespace, "stock")
	generation := int64(3)
	s.cluster.Status = fleet.ClusterStatus{
		Namespace:               s.clusterNamespace,
		AgentEnvVarsHash:        unsetEnvHash,
		AgentDeployedGeneration: &generation,
		AgentMigrated:           true, AgentNamespaceMigrated: true, CattleNamespaceMigrated: true,
		APIServerURL:              s.Hub.URL(),
		APIServerCAHash:           registration.CAHash(s.Hub.CA()),
		AgentTLSMode:              "system-store",
		GarbageCollectionInterval: &metav1.Duration{},
		Display:                   fleet.ClusterDisplay{ReadyBundles: "1/1"},
		Agent:                     fleet.AgentStatus{LastSeen: metav1.NewTime(time.Now().Truncate(time.Second)), Namespace: s.agentNamespace},
		Conditions: []genericcondition.GenericCondition{
			{Type: "Processed", Status: "True"},
			{Type: "Imported", Status: "True"},
			{Type: "Reconciled", Status: "True"},
			{Type: "Ready", Status: "True"},
		},
	}
	var err error
	s.cluster, err = s.Hub.Fleet.Clusters(s.Namespace).UpdateStatus(t.Context(), s.cluster, metav1.UpdateOptions{})
	require.NoError(t, err)
	testenv.Create(t, s.Hub.Kubernetes.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: s.clusterNamespace, Labels: managedLabel(),
		Annotations: map[string]string{"fleet.cattle.io/cluster": "stock", "fleet.cattle.io/cluster-namespace": s.Namespace},
	}})
}

func managedLabel() map[string]string { return map[string]string{"fleet.cattle.io/managed": "true"} }

func managedMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: managedLabel()}
}

func (s *fleetCluster) ownedByCluster() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: s.cluster.Name, UID: s.cluster.UID}}
}

// wranglerSet applies objects as wrangler's generating handlers do.
func (s *fleetCluster) wranglerSet(t *testing.T, setID string, owner runtime.Object, objects ...runtime.Object) {
	t.Helper()
	base, err := apply.NewForConfig(s.Hub.RESTConfig())
	require.NoError(t, err)
	require.NoError(t, base.WithDynamicLookup().WithSetOwnerReference(false, false).WithSetID(setID).WithOwner(owner).ApplyObjects(objects...))
}

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

func subject(namespace, name string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: name}}
}

func (s *fleetCluster) makeToken(t *testing.T) {
	t.Helper()
	var err error
	s.token, err = s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Create(t.Context(), &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{Name: "import-token-stock", OwnerReferences: s.ownedByCluster()},
		Spec:       testenv.TTL(12 * time.Hour),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.token.SetGroupVersionKind(fleet.SchemeGroupVersion.WithKind("ClusterRegistrationToken"))
	s.tokenAccount = name.SafeConcatName(s.token.Name, string(s.token.UID))
	role := name.SafeConcatName(s.tokenAccount, "role")
	s.wranglerSet(t, "cluster-group-token", s.token, &corev1.ServiceAccount{ObjectMeta: managedMeta(s.Namespace, s.tokenAccount)})
	s.registrationBearer = s.legacyToken(t, s.Namespace, s.tokenAccount)
	values, err := registration.EncodeValues(registration.Values{
		Workspace: s.Namespace, APIServerURL: s.Hub.URL(), APIServerCA: string(s.Hub.CA()), Token: s.registrationBearer,
		TokenName: s.token.Name, SystemRegistrationNamespace: testenv.RegistrationNamespace,
	})
	require.NoError(t, err)
	s.wranglerSet(t, "cluster-group-token", s.token,
		&corev1.ServiceAccount{ObjectMeta: managedMeta(s.Namespace, s.tokenAccount)},
		&corev1.Secret{
			ObjectMeta: managedMeta(s.Namespace, s.token.Name), Type: "fleet.cattle.io/cluster-registration-values",
			Data: map[string][]byte{"values": values},
		},
		&rbacv1.Role{ObjectMeta: managedMeta(s.Namespace, role), Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"create"}, APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"clusterregistrations"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: managedMeta(s.Namespace, name.SafeConcatName(s.tokenAccount, "to", "role")),
			Subjects:   subject(s.Namespace, s.tokenAccount), RoleRef: roleRef("Role", role),
		},
	)
	s.token.Status.SecretName = s.token.Name
	s.token.Status.Expires = &metav1.Time{Time: s.token.CreationTimestamp.Add(12 * time.Hour)}
	testenv.Update(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).UpdateStatus, s.token)
}

// legacyToken is the token of a ServiceAccount from a Secret, which does not expire.
func (s *fleetCluster) legacyToken(t *testing.T, namespace, account string) (bearer string) {
	t.Helper()
	core := s.Hub.Kubernetes.CoreV1()
	owner := testenv.RequireThere(t, core.ServiceAccounts(namespace).Get, account)
	testenv.Create(t, core.Secrets(namespace).Create, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: account + "-token", Annotations: map[string]string{corev1.ServiceAccountNameKey: account},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ServiceAccount", Name: account, UID: owner.UID}},
		},
		Type: corev1.SecretTypeServiceAccountToken,
	})
	testenv.EventuallyIs(t, core.Secrets(namespace).Get, account+"-token", func(secret *corev1.Secret) (bool, string) {
		bearer = string(secret.Data[corev1.ServiceAccountTokenKey])
		return bearer != "", "Kubernetes does not fill the token Secret"
	})
	return bearer
}

func (s *fleetCluster) makeRequest(t *testing.T) {
	t.Helper()
	var err error
	requests := s.Hub.Fleet.ClusterRegistrations(s.Namespace)
	s.request, err = requests.Create(t.Context(), &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "request-", OwnerReferences: s.ownedByCluster(),
			Labels: map[string]string{"fleet.cattle.io/registration-token": s.token.Name},
		},
		Spec: fleet.ClusterRegistrationSpec{ClientID: s.cluster.Spec.ClientID, ClientRandom: "stock-random" + s.Namespace},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.request.SetGroupVersionKind(fleet.SchemeGroupVersion.WithKind("ClusterRegistration"))
	s.account = name.SafeConcatName(s.request.Name, string(s.request.UID))
	s.wranglerSet(t, "cluster-registration", s.request, s.requestAccount())
	s.bearer = s.legacyToken(t, s.clusterNamespace, s.account)
	s.wranglerSet(t, "cluster-registration", s.request, s.requestObjects()...)
	s.request.Status = fleet.ClusterRegistrationStatus{ClusterName: s.cluster.Name, Granted: true}
	testenv.Update(t, requests.UpdateStatus, s.request)
}

func (s *fleetCluster) requestAccount() *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{ObjectMeta: managedMeta(s.clusterNamespace, s.account)}
	account.Annotations = map[string]string{
		"fleet.cattle.io/cluster":                        s.cluster.Name,
		"fleet.cattle.io/cluster-registration":           s.request.Name,
		"fleet.cattle.io/cluster-registration-namespace": s.Namespace,
	}
	return account
}

func (s *fleetCluster) secretName() string {
	return registration.AnswerSecretName(s.request.Spec.ClientID, s.request.Spec.ClientRandom)
}

func (s *fleetCluster) readerName() string { return name.SafeConcatName(s.tokenAccount, "creds") }

func (s *fleetCluster) contentBinding() string { return name.SafeConcatName(s.request.Name, "content") }

func (s *fleetCluster) requestObjects() []runtime.Object {
	agent := subject(s.clusterNamespace, s.account)
	secret := &corev1.Secret{
		ObjectMeta: managedMeta(testenv.RegistrationNamespace, s.secretName()), Type: "fleet.cattle.io/agent-credential",
		Data: map[string][]byte{
			"token": []byte(s.bearer), "deploymentNamespace": []byte(s.clusterNamespace), "clusterNamespace": []byte(s.Namespace),
			"clusterName": []byte(s.cluster.Name), "systemNamespace": []byte(testenv.SystemNamespace),
		},
	}
	secret.Labels["fleet.cattle.io/cluster"] = s.cluster.Name
	return []runtime.Object{
		secret, s.requestAccount(),
		&rbacv1.Role{ObjectMeta: managedMeta(s.Namespace, s.request.Name), Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"patch"}, APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"clusters/status"}, ResourceNames: []string{s.cluster.Name},
		}}},
		&rbacv1.RoleBinding{ObjectMeta: managedMeta(s.Namespace, s.request.Name), Subjects: agent, RoleRef: roleRef("Role", s.request.Name)},
		&rbacv1.RoleBinding{ObjectMeta: managedMeta(s.clusterNamespace, s.request.Name), Subjects: agent, RoleRef: roleRef("ClusterRole", "fleet-bundle-deployment")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: managedMeta("", s.contentBinding()), Subjects: agent, RoleRef: roleRef("ClusterRole", "fleet-content")},
		&rbacv1.Role{ObjectMeta: managedMeta(testenv.RegistrationNamespace, s.readerName()), Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{s.secretName()},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: managedMeta(testenv.RegistrationNamespace, s.readerName()),
			Subjects:   subject(s.Namespace, s.tokenAccount), RoleRef: roleRef("Role", s.readerName()),
		},
	}
}

// makeAgent creates the objects that the agent keeps on the member.
func (s *fleetCluster) makeAgent(t *testing.T) {
	t.Helper()
	testenv.Create(t, s.Member.Kubernetes.CoreV1().Secrets(s.agentNamespace).Create, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet-agent"},
		Data:       map[string][]byte{"kubeconfig": []byte("of a stock agent"), "clusterName": []byte(s.cluster.Name)},
	})
}

// requireAgentUnharmed checks that the agent keeps its rights and its credential.
func (s *fleetCluster) requireAgentUnharmed(t *testing.T) {
	t.Helper()
	testenv.RequireMay(t, s.Hub, s.bearer,
		testenv.To("list", "bundledeployments.fleet.cattle.io", s.clusterNamespace, ""),
		testenv.To("patch", "bundledeployments.fleet.cattle.io/status", s.clusterNamespace, "any"),
		testenv.To("patch", "clusters.fleet.cattle.io/status", s.Namespace, s.cluster.Name),
		testenv.To("get", "contents.fleet.cattle.io", "", "any"),
	)
	testenv.RequireMay(t, s.Hub, s.registrationBearer,
		testenv.To("create", "clusterregistrations.fleet.cattle.io", s.Namespace, ""),
		testenv.To("get", "secrets", testenv.RegistrationNamespace, s.secretName()),
	)
	core := s.Hub.Kubernetes.CoreV1()
	testenv.RequireThere(t, core.Secrets(s.clusterNamespace).Get, s.account+"-token")
	credential := testenv.RequireThere(t, core.Secrets(testenv.RegistrationNamespace).Get, s.secretName())
	assert.Equal(t, s.bearer, string(credential.Data["token"]))
	assert.Equal(t, s.registrationBearer, s.Hub.Values(t, s.Namespace, s.token.Name).Token)
}

func (s *fleetCluster) requireNotImportedAgain(t *testing.T, before *fleet.Cluster) {
	t.Helper()
	after := s.Cluster(t, s.cluster.Name)
	assert.Equal(t, before.Spec, after.Spec)
	assert.EqualValues(t, 3, *after.Status.AgentDeployedGeneration)
	assert.True(t, before.Status.Agent.LastSeen.Equal(&after.Status.Agent.LastSeen), "the heartbeat is not reset")
	assert.Equal(t, before.Status.Namespace, after.Status.Namespace)
	assert.Equal(t, unsetEnvHash, after.Status.AgentEnvVarsHash)
	core := s.Member.Kubernetes.CoreV1()
	_, err := core.Secrets(s.agentNamespace).Get(t.Context(), "fleet-agent-bootstrap", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "no agent has to register: %v", err)
	assert.Equal(t, "of a stock agent", string(testenv.RequireThere(t, core.Secrets(s.agentNamespace).Get, "fleet-agent").Data["kubeconfig"]))
	_, err = s.Member.Kubernetes.AppsV1().Deployments(s.agentNamespace).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "no agent is installed: %v", err)
}

func TestUpgradeFromFleetKeepsAgents(t *testing.T) {
	sample.Long(t)
	s := newFleetCluster(t)
	before := s.Cluster(t, s.cluster.Name)
	r := &testenv.Recorder{}
	s.Running = s.Hub.Hub(t, r.Wrap, testenv.WithoutBundles)
	cluster := s.Hub.ClusterCondition(t, s.Namespace, s.cluster.Name, fleet.ConditionRegistered, "True")
	r.Settle(t)

	assert.Contains(t, testenv.Condition(cluster.Status.Conditions, "Ready"), "True", "conditions of others stay")
	s.requireNotImportedAgain(t, before)
	s.requireAgentUnharmed(t)
	request := testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, s.request.Name)
	assert.Equal(t, s.request.UID, request.UID)
	assert.True(t, request.Status.Granted)

	s.Stop(t)
	again := &testenv.Recorder{}
	s.Running = s.Hub.Hub(t, again.Wrap, testenv.WithoutBundles)
	assert.Empty(t, testenv.WritesIn(again.Settle(t)), "a restart writes nothing")
}

// Fleet's agents may read everything in their cluster namespace, and each has a binding of its own to read Contents.
func TestUpgradeFromFleetNarrowsTheRightsOfAgents(t *testing.T) {
	sample.Long(t)
	s := newFleetCluster(t)
	s.Running = s.Hub.Hub(t)
	s.Hub.ClusterCondition(t, s.Namespace, s.cluster.Name, fleet.ConditionRegistered, "True")
	rbac := s.Hub.Kubernetes.RbacV1()
	testenv.RequireGone(t, rbac.ClusterRoleBindings().Get, "ClusterRoleBinding", s.contentBinding())
	testenv.RequireGone(t, rbac.RoleBindings(s.clusterNamespace).Get, "RoleBinding", s.request.Name)
	testenv.RequireMay(t, s.Hub, s.bearer,
		testenv.To("list", "bundledeployments.fleet.cattle.io", s.clusterNamespace, ""),
		testenv.To("patch", "bundledeployments.fleet.cattle.io/status", s.clusterNamespace, "any"),
		testenv.To("patch", "clusters.fleet.cattle.io/status", s.Namespace, s.cluster.Name),
		testenv.To("get", "contents.fleet.cattle.io", "", "any"),
	)
	agent := s.Hub.ClientFor(t, s.bearer)
	testenv.Eventually(t, func() (bool, string) { // the API server sees the change by a watch
		_, errSecret := agent.Kubernetes.CoreV1().Secrets(s.clusterNamespace).Get(t.Context(), s.account+"-token", metav1.GetOptions{})
		return apierrors.IsForbidden(errSecret), fmt.Sprint(errSecret)
	})

	require.NoError(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Delete(t.Context(), s.request.Name, metav1.DeleteOptions{}))
	s.requireStockRegistrationGone(t)
	testenv.RequireUnauthorized(t, s.Hub, s.bearer)
}

// requireStockRegistrationGone waits until no object is left of the request, and none mentions its ServiceAccount.
func (s *fleetCluster) requireStockRegistrationGone(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		left := take(t, s.Hub).Mentioning(s.account, s.request.Name, s.secretName(), s.readerName())
		return len(left) == 0, "left: " + inventory.List(left)
	})
}

func TestUpgradeFromFleetAndDeleteTheCluster(t *testing.T) {
	sample.Long(t)
	s := newFleetCluster(t)
	s.Running = s.Hub.Hub(t)
	s.Hub.ClusterCondition(t, s.Namespace, s.cluster.Name, fleet.ConditionRegistered, "True")

	require.NoError(t, s.Hub.Fleet.Clusters(s.Namespace).Delete(t.Context(), s.cluster.Name, metav1.DeleteOptions{}))
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", s.cluster.Name)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, "Namespace", s.clusterNamespace)
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", s.request.Name)
	s.requireStockRegistrationGone(t)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().ServiceAccounts(s.Namespace).Get, "ServiceAccount", s.tokenAccount)
}
