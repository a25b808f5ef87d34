package imports

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

func (s *stage) bootstrapSecret(t *testing.T, agentNamespace string) map[string]string {
	t.Helper()
	return asText(testenv.RequireThere(t, s.Member.Kubernetes.CoreV1().Secrets(agentNamespace).Get, "fleet-agent-bootstrap").Data)
}

func asText(data map[string][]byte) map[string]string {
	text := map[string]string{}
	for key, value := range data {
		text[key] = string(value)
	}
	return text
}

// agentSet are the objects of an agent on a member. Package agentmanifest compares their content with golden files.
type agentSet struct {
	bootstrap          *corev1.Secret
	config             *corev1.ConfigMap
	deployment         *appsv1.Deployment
	account, byDefault *corev1.ServiceAccount
	role               *rbacv1.ClusterRole
	binding            *rbacv1.ClusterRoleBinding
	policy             *networkingv1.NetworkPolicy
}

func (s *stage) agentSet(t *testing.T, namespace string) agentSet {
	t.Helper()
	c := s.Member.Kubernetes
	return agentSet{
		bootstrap:  testenv.RequireThere(t, c.CoreV1().Secrets(namespace).Get, "fleet-agent-bootstrap"),
		config:     testenv.RequireThere(t, c.CoreV1().ConfigMaps(namespace).Get, "fleet-agent"),
		deployment: testenv.RequireThere(t, c.AppsV1().Deployments(namespace).Get, "fleet-agent"),
		account:    testenv.RequireThere(t, c.CoreV1().ServiceAccounts(namespace).Get, "fleet-agent"),
		byDefault:  testenv.RequireThere(t, c.CoreV1().ServiceAccounts(namespace).Get, "default"),
		role:       testenv.RequireThere(t, c.RbacV1().ClusterRoles().Get, namespace+"-fleet-agent-role"),
		binding:    testenv.RequireThere(t, c.RbacV1().ClusterRoleBindings().Get, namespace+"-fleet-agent-role-binding"),
		policy:     testenv.RequireThere(t, c.NetworkingV1().NetworkPolicies(namespace).Get, "default-allow-all"),
	}
}

func (a agentSet) metas() map[string]metav1.ObjectMeta {
	return map[string]metav1.ObjectMeta{
		"Secret": a.bootstrap.ObjectMeta, "ConfigMap": a.config.ObjectMeta, "Deployment": a.deployment.ObjectMeta,
		"ServiceAccount": a.account.ObjectMeta, "default ServiceAccount": a.byDefault.ObjectMeta,
		"ClusterRole": a.role.ObjectMeta, "ClusterRoleBinding": a.binding.ObjectMeta, "NetworkPolicy": a.policy.ObjectMeta,
	}
}

func TestImportInstallsTheAgent(t *testing.T) {
	sample.Long(t)
	for _, c := range []struct{ name, agentNamespace, installedIn, hash string }{
		{"plain", "", testenv.SystemNamespace, "f399d0b310fbfb28e9667312fdc7a33954e2b8c8"},
		{"elsewhere", "cattle-fleet-local-system", "cattle-fleet-local-system", "362023f752e7f1989d8b652e029bd2c658ae7c44"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			cluster := s.ImportInto(t, c.name, c.agentNamespace, func(cluster *fleet.Cluster) {
				cluster.Labels = map[string]string{"env": "prod", "kubectl.kubernetes.io/x": "y", "management.cattle.io/z": "z"}
				cluster.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "ONE", Value: "1"}, {Name: "TWO", Value: "2"}}
			})
			set := s.agentSet(t, c.installedIn)
			for what, meta := range set.metas() {
				assert.Equal(t, c.hash, meta.Labels["objectset.rio.cattle.io/hash"], what)
			}
			s.requireBootstrapSecret(t, cluster, set.bootstrap)
			requireAgentConfig(t, cluster, set.config)
			requireAgentEnv(t, cluster, set.deployment, c.agentNamespace)
			s.requireImportStatus(t, cluster, c.agentNamespace)
		})
	}
}

func (s *stage) requireBootstrapSecret(t *testing.T, cluster *fleet.Cluster, secret *corev1.Secret) {
	t.Helper()
	token := "import-token-" + cluster.Name
	values := s.Hub.Values(t, s.Namespace, token)
	assert.Equal(t, map[string]string{
		"apiServerURL":                s.Hub.URL(),
		"apiServerCA":                 string(s.Hub.CA()),
		"clusterNamespace":            s.Namespace,
		"systemRegistrationNamespace": testenv.RegistrationNamespace,
		"token":                       values.Token,
		"tokenName":                   token,
		"registration":                cluster.Status.Import.RegistrationKey,
	}, asText(secret.Data))
	made := testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Get, token)
	assert.Equal(t, "12h0m0s", made.Spec.TTL.Duration.String())
	require.Len(t, made.OwnerReferences, 1)
	assert.Equal(t, cluster.UID, made.OwnerReferences[0].UID)
	assert.Nil(t, made.OwnerReferences[0].Controller)
}

func requireAgentConfig(t *testing.T, cluster *fleet.Cluster, configMap *corev1.ConfigMap) {
	t.Helper()
	assert.Regexp(t, "^[bcdfghjklmnpqrstvwxz2456789]{54}$", cluster.Spec.ClientID)
	var document map[string]any
	require.NoError(t, json.Unmarshal([]byte(configMap.Data["config"]), &document))
	assert.Equal(t, cluster.Spec.ClientID, document["clientID"])
	assert.Equal(t, map[string]any{"env": "prod"}, document["labels"])
	assert.Equal(t, "system-store", document["agentTLSMode"])
	assert.Contains(t, document, "garbageCollectionInterval")
	assert.Len(t, document, 4)
}

func requireAgentEnv(t *testing.T, cluster *fleet.Cluster, deployment *appsv1.Deployment, scope string) {
	t.Helper()
	container := deployment.Spec.Template.Spec.Containers[0]
	values := map[string]string{}
	for _, env := range container.Env {
		values[env.Name] = env.Value
	}
	assert.Equal(t, scope, values["AGENT_SCOPE"])
	assert.Equal(t, cluster.Status.Import.RegistrationKey, values["GENERATION"])
	assert.Equal(t, "2", values["TWO"])
}

func (s *stage) requireImportStatus(t *testing.T, cluster *fleet.Cluster, agentNamespace string) {
	t.Helper()
	status := cluster.Status
	require.NotNil(t, status.AgentDeployedGeneration)
	assert.Zero(t, *status.AgentDeployedGeneration)
	assert.True(t, status.AgentMigrated && status.CattleNamespaceMigrated && status.AgentNamespaceMigrated)
	assert.False(t, status.AgentConfigChanged)
	assert.Equal(t, s.Hub.URL(), status.APIServerURL)
	assert.Equal(t, registration.CAHash(s.Hub.CA()), status.APIServerCAHash)
	assert.Equal(t, "system-store", status.AgentTLSMode)
	assert.Equal(t, agentNamespace, status.Agent.Namespace)
	assert.Equal(t, "WaitCheckIn", status.Display.State)
}

func TestAddressOfTheHubInTheKubeconfigSecret(t *testing.T) {
	s := newStage(t, testenv.Ahead(time.Minute)) // past the time for which the hub waits for missing keys of a new Secret
	agentNamespace := s.Member.Namespace(t)
	s.Hub.WriteSecret(t, s.Namespace, "own", map[string][]byte{
		"value": s.Member.Kubeconfig(), "apiServerURL": []byte("https://own.example:6443"), "apiServerCA": s.Member.CA(),
	})
	s.CreateCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: "own", AgentNamespace: agentNamespace},
	})
	s.requireDelivered(t, agentNamespace, "https://own.example:6443", s.Member.CA())
	first := s.Cluster(t, "m").Status.Import.RegistrationKey

	s.patchSecret(t, "own", `{"stringData":{"apiServerURL":"https://moved.example:6443"}}`)
	s.requireDelivered(t, agentNamespace, "https://moved.example:6443", s.Member.CA())
	assert.Equal(t, first, s.Cluster(t, "m").Status.Import.RegistrationKey, "another address requires no new registration")

	settings := s.Hub.Reachable()
	settings["apiServerURL"] = "https://config.example:6443"
	s.Hub.Configure(t, settings)
	s.patchSecret(t, "own", `{"data":{"apiServerURL":null,"apiServerCA":null}}`)
	s.requireDelivered(t, agentNamespace, "https://config.example:6443", s.Hub.CA())

	settings["apiServerURL"] = "https://config-moved.example:6443"
	s.Hub.Configure(t, settings)
	s.requireDelivered(t, agentNamespace, "https://config-moved.example:6443", s.Hub.CA())
}

func (s *stage) patchSecret(t *testing.T, name, patch string) {
	t.Helper()
	testenv.Merge(t, s.Hub.Kubernetes.CoreV1().Secrets(s.Namespace).Patch, name, patch)
}

// requireDelivered waits until the agent of Cluster m has got this address and CA of the hub.
func (s *stage) requireDelivered(t *testing.T, agentNamespace, url string, ca []byte) {
	t.Helper()
	cluster := s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return c.Status.APIServerURL == url, "status.apiServerURL is " + c.Status.APIServerURL + ", want " + url + "; " + s.imported(t)
	})
	assert.Equal(t, registration.CAHash(ca), cluster.Status.APIServerCAHash)
	bootstrap := s.bootstrapSecret(t, agentNamespace)
	assert.Equal(t, url, bootstrap["apiServerURL"])
	assert.Equal(t, string(ca), bootstrap["apiServerCA"])
}

// credentialOf returns the credential that the agent has stored.
func (s *stage) credentialOf(t *testing.T, agentNamespace string) *corev1.Secret {
	t.Helper()
	return testenv.RequireThere(t, s.Member.Kubernetes.CoreV1().Secrets(agentNamespace).Get, "fleet-agent")
}

func (s *stage) onlyRequest(t *testing.T) *fleet.ClusterRegistration {
	t.Helper()
	var only *fleet.ClusterRegistration
	testenv.Eventually(t, func() (bool, string) {
		requests, err := s.Hub.Fleet.ClusterRegistrations(s.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(requests.Items) != 1 || !requests.Items[0].Status.Granted {
			return false, "want one granted request and no other"
		}
		only = &requests.Items[0]
		return true, ""
	})
	return only
}

func TestRedeployGeneration(t *testing.T) {
	sample.Long(t)
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	s.ImportInto(t, "m", agentNamespace)
	agent := s.Member.Agent(t, agentNamespace)
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionRegistered, "True")
	testenv.RequireCredential(t, s.Member, agentNamespace, "m")
	request := s.onlyRequest(t)
	old := s.credentialOf(t, agentNamespace)
	agent.Stop(t)

	s.PatchSpec(t, "m", `{"redeployAgentGeneration":1}`)
	s.awaitGeneration(t, 1)
	assert.Equal(t, old.Data, s.credentialOf(t, agentNamespace).Data, "the old credential stays until the new one has worked")
	assert.Equal(t, request.UID, s.onlyRequest(t).UID)
	env := s.agentSet(t, agentNamespace).deployment.Spec.Template.Spec.Containers[0].Env
	assert.Contains(t, env, corev1.EnvVar{Name: "GENERATION", Value: s.Cluster(t, "m").Status.Import.RegistrationKey})

	s.Member.Agent(t, agentNamespace)
	second := s.requireReplaced(t, agentNamespace, request, old)

	old = s.credentialOf(t, agentNamespace)
	s.PatchSpec(t, "m", `{"redeployAgentGeneration":-1}`)
	s.awaitGeneration(t, -1)
	s.requireReplaced(t, agentNamespace, second, old)
}

func (s *stage) awaitGeneration(t *testing.T, want int64) {
	t.Helper()
	s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		generation := c.Status.AgentDeployedGeneration
		return generation != nil && *generation == want, "status.agentDeployedGeneration is not updated"
	})
}

// requireReplaced waits until the agent uses another credential, of another request.
func (s *stage) requireReplaced(t *testing.T, agentNamespace string, before *fleet.ClusterRegistration, old *corev1.Secret) *fleet.ClusterRegistration {
	t.Helper()
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", before.Name)
	testenv.RequireCredential(t, s.Member, agentNamespace, "m")
	after := s.onlyRequest(t)
	assert.NotEqual(t, before.UID, after.UID)
	stored := s.credentialOf(t, agentNamespace)
	assert.NotEqual(t, old.Data["kubeconfig"], stored.Data["kubeconfig"])
	assert.Equal(t, s.Cluster(t, "m").Status.Import.RegistrationKey, string(stored.Data["registration"]))
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionRegistered, "True")
	return after
}

func TestSchedulingCustomization(t *testing.T) {
	sample.Long(t)
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	s.ImportInto(t, "m", agentNamespace)
	classes := s.Member.Kubernetes.SchedulingV1().PriorityClasses()
	budgets := s.Member.Kubernetes.PolicyV1().PodDisruptionBudgets(agentNamespace)
	const class, budget = "fleet-agent-priority-class", "fleet-agent-pod-disruption-budget"
	testenv.RequireGone(t, classes.Get, "PriorityClass", class)
	registrationBefore := s.Cluster(t, "m").Status.Import.RegistrationKey

	s.PatchSpec(t, "m", `{"agentSchedulingCustomization":{"priorityClass":{"value":7,"preemptionPolicy":"Never"},"podDisruptionBudget":{"minAvailable":"1"}}}`)
	made := testenv.EventuallyThere(t, classes.Get, class)
	assert.EqualValues(t, 7, made.Value)
	assert.Equal(t, corev1.PreemptNever, *made.PreemptionPolicy)
	assert.Equal(t, "1", testenv.EventuallyThere(t, budgets.Get, budget).Spec.MinAvailable.String())
	s.awaitPriorityClass(t, agentNamespace, class)

	s.PatchSpec(t, "m", `{"agentSchedulingCustomization":{"priorityClass":{"value":8}}}`)
	testenv.Eventually(t, func() (bool, string) {
		changed, err := classes.Get(t.Context(), class, metav1.GetOptions{})
		return err == nil && changed.Value == 8, "the PriorityClass still has its old value; " + s.imported(t)
	})

	s.PatchSpec(t, "m", `{"agentSchedulingCustomization":{"priorityClass":null}}`)
	s.awaitPriorityClass(t, agentNamespace, "")
	testenv.RequireGone(t, classes.Get, "PriorityClass", class)
	testenv.RequireThere(t, budgets.Get, budget)

	s.PatchSpec(t, "m", `{"agentSchedulingCustomization":null}`)
	testenv.RequireGone(t, budgets.Get, "PodDisruptionBudget", budget)
	assert.Equal(t, registrationBefore, s.Cluster(t, "m").Status.Import.RegistrationKey, "no new registration")
}

// imported is the condition Imported of Cluster m.
func (s *stage) imported(t *testing.T) string {
	t.Helper()
	c := s.Cluster(t, "m")
	return fmt.Sprintf("Imported is %s; status.import is %+v", testenv.Condition(c.Status.Conditions, fleet.ConditionImported), c.Status.Import)
}

// awaitPriorityClass waits for the priorityClassName of the agent's Deployment.
func (s *stage) awaitPriorityClass(t *testing.T, agentNamespace, want string) {
	t.Helper()
	deployments := s.Member.Kubernetes.AppsV1().Deployments(agentNamespace)
	testenv.EventuallyIs(t, deployments.Get, "fleet-agent", func(deployment *appsv1.Deployment) (bool, string) {
		got := deployment.Spec.Template.Spec.PriorityClassName
		return got == want, "priorityClassName is " + got + "; " + s.imported(t)
	})
}

func TestFirstHeartbeat(t *testing.T) {
	sample.Long(t)
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	waiting := s.ImportInto(t, "m", agentNamespace)
	assert.Equal(t, "WaitCheckIn", waiting.Status.Display.State)
	assert.True(t, waiting.Status.Agent.LastSeen.IsZero())
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionRegistered, "Unknown WaitingForAgent")

	// An agent that keeps the clientID of an earlier registration is refused. The Cluster says why it waits.
	secret := testenv.RequireThere(t, s.Member.Kubernetes.CoreV1().Secrets(agentNamespace).Get, registration.BootstrapSecret)
	other := s.Hub.Request(t, testenv.BootstrapValues(secret), fleet.ClusterRegistrationSpec{ClientID: "earlier", ClientRandom: "earlier" + s.Namespace})
	said := fmt.Sprintf("ClusterRegistration %s names the token of this import, but has another clientID than this Cluster, and was refused (%s: ",
		other.Name, fleet.ReasonClientIDNotAllowed)
	s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		registered := fleetstatus.Condition(c.Status.Conditions, fleet.ConditionRegistered)
		return registered.Reason == fleet.ReasonWaitingForAgent && strings.Contains(registered.Message, said), registered.Message
	})

	s.Member.Agent(t, agentNamespace)
	cluster := s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return !c.Status.Agent.LastSeen.IsZero() && c.Status.Display.State != "WaitCheckIn", "display.state is " + c.Status.Display.State
	})
	assert.Equal(t, agentNamespace, cluster.Status.Agent.Namespace)
	s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return strings.HasSuffix(c.Status.Display.ReadyBundles, "/1"), "the agent's own Bundle is not counted: " + c.Status.Display.ReadyBundles
	})
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionRegistered, "True Registered")

	s.Hub.AwaitHeartbeat(t, s.Namespace, "m", time.Now())
}
