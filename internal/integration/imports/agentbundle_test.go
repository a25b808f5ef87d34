package imports

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// beat sends a heartbeat of the agent.
func (s *stage) beat(t *testing.T, cluster, namespace, generation string) {
	t.Helper()
	s.Beat(t, cluster, fleet.AgentStatus{LastSeen: metav1.Now(), Namespace: namespace, Version: "v1", Generation: generation})
}

// registerWith registers with the bootstrap Secret, as the agent does.
func (s *stage) registerWith(t *testing.T, cluster, agentNamespace, random string) testenv.Registered {
	t.Helper()
	secret := testenv.EventuallyThere(t, s.Member.Kubernetes.CoreV1().Secrets(agentNamespace).Get, registration.BootstrapSecret)
	return s.Register(t, testenv.BootstrapValues(secret), s.Cluster(t, cluster).Spec.ClientID, random)
}

// adopted creates an imported Cluster. The test registers and sends a heartbeat in place of the agent.
func (s *stage) adopted(t *testing.T, name string, change ...func(*fleet.Cluster)) (agentNamespace string, r testenv.Registered) {
	t.Helper()
	agentNamespace = s.Member.Namespace(t)
	s.ImportInto(t, name, agentNamespace, change...)
	r = s.registerWith(t, name, agentNamespace, name)
	s.beat(t, name, agentNamespace, "managed/0")
	s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionReconciled, "True Reconciled")
	return agentNamespace, r
}

// edge registers in place of an agent that a user installed.
func (s *stage) edge(t *testing.T, clientID string) string {
	t.Helper()
	r := s.Register(t, s.Token(t, "tok-"+clientID), clientID, clientID)
	name := r.Request.Status.ClusterName
	s.beat(t, name, testenv.SystemNamespace, "managed/0")
	s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionReconciled, "True Reconciled")
	return name
}

func (s *stage) agentBundle(t *testing.T, cluster string) *fleet.Bundle {
	t.Helper()
	return testenv.RequireThere(t, s.Hub.Fleet.Bundles(s.Namespace).Get, registration.AgentBundleName(cluster))
}

// awaitBundle waits until check accepts the Bundle of the Cluster's agent.
func (s *stage) awaitBundle(t *testing.T, cluster string, check func(*fleet.Bundle) bool) *fleet.Bundle {
	t.Helper()
	return testenv.EventuallyIs(t, s.Hub.Fleet.Bundles(s.Namespace).Get, registration.AgentBundleName(cluster), func(bundle *fleet.Bundle) (bool, string) {
		return check(bundle), fmt.Sprintf("the Bundle is %+v; %s", bundle.Spec, s.Hub.ConditionOf(testenv.KindCluster, s.Namespace, cluster, fleet.ConditionReconciled))
	})
}

func manifestOf(bundle *fleet.Bundle) string {
	if len(bundle.Spec.Resources) == 0 {
		return ""
	}
	return bundle.Spec.Resources[0].Content
}

func says(text string) func(*fleet.Bundle) bool {
	return func(b *fleet.Bundle) bool { return strings.Contains(manifestOf(b), text) }
}

// deployment returns the agent's Deployment on the member.
func (s *stage) deployment(t *testing.T, agentNamespace string) *appsv1.Deployment {
	t.Helper()
	return testenv.RequireThere(t, s.Member.Kubernetes.AppsV1().Deployments(agentNamespace).Get, registration.AgentName)
}

func TestBundleDeliversSettings(t *testing.T) {
	sample.Long(t)
	s := newStage(t, testenv.WithoutBundles)
	agentNamespace, _ := s.adopted(t, "m")
	before, deployed := s.Cluster(t, "m"), s.deployment(t, agentNamespace)

	s.PatchSpec(t, "m", `{"agentEnvVars":[{"name":"HTTPS_PROXY","value":"http://proxy"}],"privateRepoURL":"registry.example"}`)
	s.awaitBundle(t, "m", says("http://proxy"))
	s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return c.Status.AgentPrivateRepoURL == "registry.example", "the status does not have the delivered value"
	})
	settings := s.Hub.Reachable()
	settings["agentImage"] = "rancher/fleet-agent:another"
	settings["agentCheckinInterval"] = "7m"
	settings["agentWorkers"] = map[string]any{"drift": "3"}
	s.Hub.Configure(t, settings)
	s.awaitBundle(t, "m", func(b *fleet.Bundle) bool {
		return says("registry.example/rancher/fleet-agent:another")(b) && says("value: 7m")(b) && says(`value: "3"`)(b)
	})

	after := s.Cluster(t, "m")
	before.Status.Import.ManifestHash = "changed" // should the agent be unable to start, it is installed once more
	assert.Equal(t, before.Status.Import, after.Status.Import, "no import")
	assert.Equal(t, before.Status.Agent, after.Status.Agent)
	assert.Equal(t, deployed.Generation, s.deployment(t, agentNamespace).Generation, "the hub did not change the member")
	assert.Equal(t, "True Imported: ", s.Hub.ConditionOf(testenv.KindCluster, s.Namespace, "m", fleet.ConditionImported))
}

func TestSchedulingCustomizationOfAnAgentWithItsBundle(t *testing.T) {
	sample.Long(t)
	s := &stage{testenv.ParallelStage(t, testenv.WithoutBundles)}
	agentNamespace, _ := s.adopted(t, "m")
	before := s.Cluster(t, "m")
	s.PatchSpec(t, "m", `{"agentSchedulingCustomization":{"podDisruptionBudget":{"minAvailable":"1"}}}`)
	testenv.EventuallyThere(t, s.Member.Kubernetes.PolicyV1().PodDisruptionBudgets(agentNamespace).Get, "fleet-agent-pod-disruption-budget")
	after := s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return c.Status.AgentSchedulingCustomizationHash != "", "the import has not ended"
	})
	assert.Equal(t, before.Status.Import.RegistrationKey, after.Status.Import.RegistrationKey)
	assert.Equal(t, before.Status.Agent.Generation, after.Status.Agent.Generation, "the agent stays registered")
	env := s.deployment(t, agentNamespace).Spec.Template.Spec.Containers[0].Env
	assert.Contains(t, env, corev1.EnvVar{Name: "GENERATION", Value: "managed/0"}, "so that it restarts once")
}

func TestImportDeliversSettings(t *testing.T) {
	sample.Long(t)
	s := newStage(t, testenv.WithoutBundles)
	agentNamespace := s.Member.Namespace(t)
	s.ImportInto(t, "m", agentNamespace)
	s.registerWith(t, "m", agentNamespace, "m")
	s.beat(t, "m", agentNamespace, s.Cluster(t, "m").Status.Import.RegistrationKey)
	s.PatchSpec(t, "m", `{"agentEnvVars":[{"name":"HTTPS_PROXY","value":"http://proxy"}]}`)
	s.awaitBundle(t, "m", says("http://proxy"))
	testenv.Eventually(t, func() (bool, string) {
		env := s.deployment(t, agentNamespace).Spec.Template.Spec.Containers[0].Env
		return env[len(env)-1].Name == "HTTPS_PROXY", "the Deployment has the old settings; " + s.imported(t)
	})

	settings := s.Hub.Reachable()
	settings["agentImage"] = "rancher/fleet-agent:another"
	s.Hub.Configure(t, settings)
	testenv.Eventually(t, func() (bool, string) {
		image := s.deployment(t, agentNamespace).Spec.Template.Spec.Containers[0].Image
		return image == "rancher/fleet-agent:another", "the Deployment has image " + image + "; " + s.imported(t)
	})
}

func TestAddressOfTheHubChanges(t *testing.T) {
	sample.Long(t)
	s := newStage(t, testenv.WithoutBundles)
	agentNamespace, _ := s.adopted(t, "m")
	edge := s.edge(t, "edge")
	before, deployed, bundle := s.Cluster(t, "m"), s.deployment(t, agentNamespace), s.agentBundle(t, "m")

	settings := s.Hub.Reachable()
	settings["apiServerURL"] = "https://moved.example:6443"
	settings["agentTLSMode"] = "strict"
	s.Hub.Configure(t, settings)
	s.requireDelivered(t, agentNamespace, "https://moved.example:6443", s.Hub.CA())
	after := s.Cluster(t, "m")
	assert.Equal(t, before.Status.Import.RegistrationKey, after.Status.Import.RegistrationKey)
	assert.Equal(t, before.Status.Agent, after.Status.Agent)
	assert.Equal(t, before.Status.Import.RegistrationKey, s.bootstrapSecret(t, agentNamespace)["registration"])
	template := s.deployment(t, agentNamespace).Spec.Template
	assert.Contains(t, template.Spec.Containers[0].Env, corev1.EnvVar{Name: "GENERATION", Value: "managed/0"})
	assert.Greater(t, s.deployment(t, agentNamespace).Generation, deployed.Generation)
	assert.Equal(t, bundle.Spec, s.agentBundle(t, "m").Spec, "the Bundle does not contain the address")

	selfRegistered := s.awaitBundle(t, edge, says("apiServerURL: https://moved.example:6443"))
	assert.Contains(t, manifestOf(selfRegistered), "agentTLSMode: strict")

	s.PatchSpec(t, "m", `{"redeployAgentGeneration":1}`)
	s.awaitGeneration(t, 1)
	assert.NotEqual(t, before.Status.Import.RegistrationKey, s.Cluster(t, "m").Status.Import.RegistrationKey, "a redeployment requires a new registration")
	s.awaitBundle(t, "m", says("managed/1"))
	assert.Contains(t, s.deployment(t, agentNamespace).Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "GENERATION", Value: "managed/1"})
}

func TestRevokedCredential(t *testing.T) {
	sample.Long(t)
	s := &stage{testenv.ParallelStage(t, testenv.WithoutBundles)}
	agentNamespace, r := s.adopted(t, "m")
	edge := s.edge(t, "edge")
	key := s.Cluster(t, "m").Status.Import.RegistrationKey
	secrets := s.Member.Kubernetes.CoreV1().Secrets(agentNamespace)
	require.NoError(t, secrets.Delete(t.Context(), registration.BootstrapSecret, metav1.DeleteOptions{}), "as the agent does")

	s.revoke(t, "m")
	healed := s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return c.Status.Import.RegistrationKey != key, "no new registration is required; " + s.imported(t)
	})
	assert.Equal(t, healed.Status.Import.RegistrationKey, s.bootstrapSecret(t, agentNamespace)["registration"])
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionRegistered, "False CredentialRevoked")
	again := s.registerWith(t, "m", agentNamespace, "again")
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", r.Request.Name)
	s.beat(t, "m", agentNamespace, "managed/0")
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionRegistered, "True Registered")
	assert.Equal(t, healed.Status.Import, s.Cluster(t, "m").Status.Import, "once")
	assert.NotEqual(t, r.Bearer(), again.Bearer())

	s.revoke(t, edge)
	refused := s.Hub.ClusterCondition(t, s.Namespace, edge, fleet.ConditionRegistered, "False CredentialRevoked")
	assert.Contains(t, testenv.Condition(refused.Status.Conditions, fleet.ConditionRegistered), "token create --cluster ")
}

// revoke deletes the ServiceAccounts of a Cluster's agent.
func (s *stage) revoke(t *testing.T, cluster string) {
	t.Helper()
	accounts := s.Hub.Kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(s.Namespace, cluster))
	require.NoError(t, accounts.DeleteCollection(t.Context(), metav1.DeleteOptions{}, testenv.Ours()))
}

func TestWritesOfAChange(t *testing.T) {
	sample.Long(t)
	r := &testenv.Recorder{}
	s := newStage(t, testenv.WithoutBundles, r.Wrap)
	for n := range 3 {
		s.adopted(t, fmt.Sprintf("m%d", n))
	}
	s.edge(t, "edge")
	r.Settle(t)

	testenv.Merge(t, s.Hub.Fleet.Clusters(s.Namespace).Patch, "m0", `{"metadata":{"labels":{"a":"b"}}}`)
	assert.Empty(t, r.Settle(t), "a label changes no Bundle")

	s.PatchSpec(t, "m1", `{"hostNetwork":true}`)
	s.awaitBundle(t, "m1", says("hostNetwork: true"))
	var writes []string
	for _, w := range testenv.WritesIn(r.Settle(t)) {
		writes = append(writes, w.Method+" "+w.Path[strings.LastIndex(w.Path, s.Namespace)+len(s.Namespace):])
	}
	assert.ElementsMatch(t, []string{
		"PATCH /bundles/fleet-agent-m1", "PATCH /clusters/m1/status",
		"PATCH /clusters/m1", // status.import, which says that the Bundle has changed, is in an annotation with disableBundles
	}, writes)
}

func TestBundleIsRepaired(t *testing.T) {
	sample.Long(t)
	s := &stage{testenv.ParallelStage(t, testenv.WithoutBundles)}
	s.adopted(t, "m")
	bundles := s.Hub.Fleet.Bundles(s.Namespace)
	sound := s.agentBundle(t, "m")
	testenv.Merge(t, bundles.Patch, sound.Name, `{"spec":{"resources":[{"name":"agent.yaml","content":"x"}],"targets":[{"clusterSelector":{}}],"helm":null}}`)
	repaired := s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return assert.ObjectsAreEqual(sound.Spec, b.Spec) })
	assert.Equal(t, sound.UID, repaired.UID)
	require.NoError(t, bundles.Delete(t.Context(), sound.Name, metav1.DeleteOptions{}))
	again := s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return b.UID != sound.UID })
	assert.Equal(t, sound.Spec, again.Spec)
}

func TestBundleOfAnUnmanagedAgent(t *testing.T) {
	s := newStage(t, testenv.WithoutBundles)
	s.adopted(t, "m")
	relabel := func(labels string) {
		testenv.Merge(t, s.Hub.Fleet.Clusters(s.Namespace).Patch, "m", `{"metadata":{"labels":`+labels+`}}`)
	}
	gone := func() { testenv.RequireGone(t, s.Hub.Fleet.Bundles(s.Namespace).Get, "Bundle", "fleet-agent-m") }

	relabel(`{"fleet.cattle.io/non-managed-agent":"x"}`)
	gone()
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionReconciled, "True AgentNotManaged")
	relabel(`null`)
	s.awaitBundle(t, "m", says("managed/0"))
	settings := s.Hub.Reachable()
	settings["manageAgent"] = false
	s.Hub.Configure(t, settings)
	gone()
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionReconciled, "True AgentNotManaged")
	s.Hub.Configure(t, s.Hub.Reachable())
	s.awaitBundle(t, "m", says("managed/0"))
}

func TestBundleMovesWithTheImport(t *testing.T) {
	sample.Long(t)
	s := &stage{testenv.ParallelStage(t, testenv.WithoutBundles)}
	first, _ := s.adopted(t, "m")
	second := s.Member.Namespace(t)
	s.patchSecret(t, "m-kubeconfig", `{"stringData":{"value":"garbage"}}`)
	s.PatchSpec(t, "m", `{"agentNamespace":"`+second+`"}`)
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionImported, "False KubeconfigInvalid")
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionReconciled, "Unknown WaitingForImport")
	assert.Equal(t, first, s.agentBundle(t, "m").Spec.DefaultNamespace)

	kubeconfig, err := json.Marshal(map[string]any{"data": map[string][]byte{"value": s.Member.Kubeconfig()}})
	require.NoError(t, err)
	s.patchSecret(t, "m-kubeconfig", string(kubeconfig))
	s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return b.Spec.DefaultNamespace == second && says("namespace: "+second)(b) })
	testenv.RequireThere(t, s.Member.Kubernetes.CoreV1().Secrets(second).Get, registration.BootstrapSecret)

	s.PatchSpec(t, "m", `{"agentNamespace":null}`)
	s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return b.Spec.DefaultNamespace == testenv.SystemNamespace })
}

func TestPullSecretChanges(t *testing.T) {
	s := newStage(t, testenv.WithoutBundles)
	name := "pull-" + s.Namespace
	s.Hub.WriteSecret(t, testenv.SystemNamespace, name, map[string][]byte{"a": []byte("1")})
	settings := s.Hub.Reachable()
	settings["imagePullSecrets"] = []map[string]string{{"name": name}}
	s.Hub.Configure(t, settings)
	agentNamespace, _ := s.adopted(t, "m")
	secrets := s.Member.Kubernetes.CoreV1().Secrets(agentNamespace)
	assert.Equal(t, map[string]string{"a": "1"}, asText(testenv.RequireThere(t, secrets.Get, name).Data))
	assert.Contains(t, manifestOf(s.agentBundle(t, "m")), "name: "+name)
	assert.NotContains(t, manifestOf(s.agentBundle(t, "m")), "kind: Secret")
	deployed := s.deployment(t, agentNamespace)

	s.Hub.WriteSecret(t, testenv.SystemNamespace, name, map[string][]byte{"a": []byte("2")})
	testenv.Eventually(t, func() (bool, string) {
		data := asText(testenv.RequireThere(t, secrets.Get, name).Data)
		return data["a"] == "2", fmt.Sprintf("the copy is %v; %s", data, s.imported(t))
	})
	// Not the resourceVersion: Kubernetes writes the status of the Deployment at any time.
	assert.Equal(t, deployed.Generation, s.deployment(t, agentNamespace).Generation)

	s.Hub.Configure(t, s.Hub.Reachable())
	testenv.RequireGone(t, secrets.Get, "Secret", name)
	s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return !says(name)(b) })
}

// The hub is killed after each of its writes in turn, from the grant of the request to the Bundle of the agent.
func TestAgentBundlesUnderFaults(t *testing.T) {
	sample.Long(t)
	_, member := testenv.Clusters(t)
	sweep := testenv.Sweep{Least: 1, Blows: []testenv.Blow{testenv.Kill}}
	sweep.Run(t, func(t *testing.T, hub *testenv.Cluster) func(int, func()) {
		s := &stage{&testenv.Stage{Hub: hub, Member: member, Namespace: hub.Namespace(t)}}
		t.Cleanup(func() {
			bundles, err := s.Hub.Fleet.Bundles(s.Namespace).List(context.Background(), metav1.ListOptions{})
			require.NoError(t, err)
			for _, bundle := range bundles.Items {
				assert.Equal(t, []string{fleet.BundleFinalizer}, bundle.Finalizers)
				assert.Empty(t, bundle.OwnerReferences)
			}
		})
		return func(n int, strike func()) {
			name := fmt.Sprintf("m%d", n)
			agentNamespace := s.Member.Namespace(t)
			s.ImportInto(t, name, agentNamespace)
			s.registerWith(t, name, agentNamespace, name)
			strike()
			s.beat(t, name, agentNamespace, "managed/0")
			s.PatchSpec(t, name, `{"privateRepoURL":"registry.example"}`)
			s.awaitBundle(t, name, says("registry.example"))
			s.EventuallyCluster(t, name, func(c *fleet.Cluster) (bool, string) {
				return c.Status.AgentPrivateRepoURL == "registry.example", "the status does not have the delivered value"
			})
			s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionReconciled, "True Reconciled")
		}
	})
}
