package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers"
	"github.com/muster-fleet/muster/pkg/registration"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// withoutBundles is a hub beside which Fleet's own controllers work on Bundles, so that they have no finalizer of ours.
func withoutBundles(o *controllers.Options) { o.DisableBundles = true }

// settled are the agent's own words about itself in a heartbeat.
func (s *stage) beat(t *testing.T, cluster, namespace, generation string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"agent": fleet.AgentStatus{
		LastSeen: metav1.Now(), Namespace: namespace, Generation: generation,
	}}})
	require.NoError(t, err)
	_, err = s.hub.Fleet.Clusters(s.namespace).Patch(t.Context(), cluster, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// registerWith does what the agent does with the bootstrap Secret it finds.
func (s *stage) registerWith(t *testing.T, cluster, agentNamespace, random string) registered {
	t.Helper()
	secret := eventuallyThere(t, s.member.Kubernetes.CoreV1().Secrets(agentNamespace).Get, registration.BootstrapSecret)
	return s.register(t, bootstrapValues(secret), s.getCluster(t, cluster).Spec.ClientID, random)
}

// adopted is an imported Cluster whose agent, played by the test, has registered and taken over its Bundle.
func (s *stage) adopted(t *testing.T, name string, change ...func(*fleet.Cluster)) (agentNamespace string, r registered) {
	t.Helper()
	agentNamespace = s.member.Namespace(t)
	s.importInto(t, name, agentNamespace, change...)
	r = s.registerWith(t, name, agentNamespace, name)
	s.beat(t, name, agentNamespace, "managed/0")
	s.hub.ClusterCondition(t, s.namespace, name, fleet.ConditionReconciled, "True Reconciled")
	return agentNamespace, r
}

// edge is a Cluster whose agent, played by the test, has registered by itself.
func (s *stage) edge(t *testing.T, clientID string) string {
	t.Helper()
	r := s.register(t, s.token(t, "tok-"+clientID), clientID, clientID)
	name := r.request.Status.ClusterName
	s.beat(t, name, systemNamespace, "managed/0")
	s.hub.ClusterCondition(t, s.namespace, name, fleet.ConditionReconciled, "True Reconciled")
	return name
}

func (s *stage) agentBundle(t *testing.T, cluster string) *fleet.Bundle {
	t.Helper()
	return requireThere(t, s.hub.Fleet.Bundles(s.namespace).Get, registration.AgentBundleName(cluster))
}

// awaitBundle waits until the Bundle of the Cluster's agent is as check wants it.
func (s *stage) awaitBundle(t *testing.T, cluster string, check func(*fleet.Bundle) bool) *fleet.Bundle {
	t.Helper()
	var found *fleet.Bundle
	testenv.Eventually(t, func() (bool, string) {
		bundle, err := s.hub.Fleet.Bundles(s.namespace).Get(t.Context(), registration.AgentBundleName(cluster), metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		found = bundle
		return check(bundle), fmt.Sprintf("the Bundle is %+v; %s", bundle.Spec, s.hub.ConditionOf(testenv.KindCluster, s.namespace, cluster, fleet.ConditionReconciled))
	})
	return found
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

// deployment is the agent's on the member.
func (s *stage) deployment(t *testing.T, agentNamespace string) *appsv1.Deployment {
	t.Helper()
	return requireThere(t, s.member.Kubernetes.AppsV1().Deployments(agentNamespace).Get, registration.AgentName)
}

func TestTheBundleOfAnAgentIsAsFleetKnowsIt(t *testing.T) {
	s := newStage(t, withoutBundles)
	agentNamespace, _ := s.adopted(t, "m", func(c *fleet.Cluster) {
		c.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "ONE", Value: "1"}}
	})
	bundle := s.agentBundle(t, "m")
	assert.Equal(t, "fleet-manage-agent", bundle.Annotations["objectset.rio.cattle.io/id"])
	assert.Empty(t, bundle.OwnerReferences)
	assert.Empty(t, bundle.Finalizers)

	spec, err := yaml.Marshal(bundle.Spec)
	require.NoError(t, err)
	requireGolden(t, "agentbundle.yaml", strings.ReplaceAll(string(spec), agentNamespace, "AGENT-NAMESPACE"))

	edge := s.agentBundle(t, s.edge(t, "edge"))
	assert.Equal(t, systemNamespace, edge.Spec.DefaultNamespace)
	assert.Contains(t, manifestOf(edge), "name: fleet-agent-hub")
	assert.Contains(t, manifestOf(edge), "apiServerURL: "+s.hub.URL())
	assert.NotContains(t, manifestOf(bundle), "fleet-agent-hub")
}

func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the test with -update")
	assert.Equal(t, string(want), got)
}

func TestSettingsReachAnAgentThatHasItsBundleByThatAlone(t *testing.T) {
	s := newStage(t, withoutBundles)
	agentNamespace, _ := s.adopted(t, "m")
	before, deployed := s.getCluster(t, "m"), s.deployment(t, agentNamespace)

	s.patchSpec(t, "m", `{"agentEnvVars":[{"name":"HTTPS_PROXY","value":"http://proxy"}],"privateRepoURL":"registry.example"}`)
	s.awaitBundle(t, "m", says("http://proxy"))
	s.eventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return c.Status.AgentPrivateRepoURL == "registry.example", "the status does not say what was delivered"
	})
	settings := s.hub.Reachable()
	settings["agentImage"] = "rancher/fleet-agent:another"
	settings["agentCheckinInterval"] = "7m"
	settings["agentWorkers"] = map[string]any{"drift": "3"}
	s.hub.Configure(t, settings)
	s.awaitBundle(t, "m", func(b *fleet.Bundle) bool {
		return says("registry.example/rancher/fleet-agent:another")(b) && says("value: 7m")(b) && says(`value: "3"`)(b)
	})

	after := s.getCluster(t, "m")
	assert.Equal(t, before.Status.Import, after.Status.Import, "no import")
	assert.Equal(t, before.Status.Agent, after.Status.Agent)
	assert.Equal(t, deployed.ResourceVersion, s.deployment(t, agentNamespace).ResourceVersion, "nothing was asked of the member")
	assert.Equal(t, "True Imported: ", s.hub.ConditionOf(testenv.KindCluster, s.namespace, "m", fleet.ConditionImported))
}

func TestASchedulingCustomisationIsImportedAsTheBundleHasIt(t *testing.T) {
	s := newStage(t, withoutBundles)
	agentNamespace, _ := s.adopted(t, "m")
	before := s.getCluster(t, "m")
	s.patchSpec(t, "m", `{"agentSchedulingCustomization":{"podDisruptionBudget":{"minAvailable":"1"}}}`)
	eventuallyThere(t, s.member.Kubernetes.PolicyV1().PodDisruptionBudgets(agentNamespace).Get, "fleet-agent-pod-disruption-budget")
	after := s.eventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return c.Status.AgentSchedulingCustomizationHash != "", "the import is not over"
	})
	assert.Equal(t, before.Status.Import.Registration, after.Status.Import.Registration)
	assert.Equal(t, before.Status.Agent.Generation, after.Status.Agent.Generation, "the agent stays registered")
	env := s.deployment(t, agentNamespace).Spec.Template.Spec.Containers[0].Env
	assert.Contains(t, env, corev1.EnvVar{Name: "GENERATION", Value: "managed/0"}, "so that it restarts once")
}

func TestSettingsOfAnAgentWithoutItsBundleComeByImportAsWell(t *testing.T) {
	s := newStage(t, withoutBundles)
	agentNamespace := s.member.Namespace(t)
	s.importInto(t, "m", agentNamespace)
	s.registerWith(t, "m", agentNamespace, "m")
	s.beat(t, "m", agentNamespace, s.getCluster(t, "m").Status.Import.Registration)
	s.patchSpec(t, "m", `{"agentEnvVars":[{"name":"HTTPS_PROXY","value":"http://proxy"}]}`)
	s.awaitBundle(t, "m", says("http://proxy"))
	testenv.Eventually(t, func() (bool, string) {
		env := s.deployment(t, agentNamespace).Spec.Template.Spec.Containers[0].Env
		return env[len(env)-1].Name == "HTTPS_PROXY", "the Deployment has the old settings; " + s.imported(t)
	})

	settings := s.hub.Reachable()
	settings["agentImage"] = "rancher/fleet-agent:another"
	s.hub.Configure(t, settings)
	testenv.Eventually(t, func() (bool, string) {
		image := s.deployment(t, agentNamespace).Spec.Template.Spec.Containers[0].Image
		return image == "rancher/fleet-agent:another", "the Deployment has image " + image + "; " + s.imported(t)
	})
}

func TestAnotherURLIsDeliveredWithoutANewRegistration(t *testing.T) {
	s := newStage(t, withoutBundles)
	agentNamespace, _ := s.adopted(t, "m")
	edge := s.edge(t, "edge")
	before, deployed, bundle := s.getCluster(t, "m"), s.deployment(t, agentNamespace), s.agentBundle(t, "m")

	settings := s.hub.Reachable()
	settings["apiServerURL"] = "https://moved.example:6443"
	settings["agentTLSMode"] = "strict"
	s.hub.Configure(t, settings)
	s.requireDelivered(t, agentNamespace, "https://moved.example:6443", s.hub.CA())
	after := s.getCluster(t, "m")
	assert.Equal(t, before.Status.Import.Registration, after.Status.Import.Registration)
	assert.Equal(t, before.Status.Agent, after.Status.Agent)
	assert.Equal(t, before.Status.Import.Registration, s.bootstrapSecret(t, agentNamespace)["registration"])
	template := s.deployment(t, agentNamespace).Spec.Template
	assert.Contains(t, template.Spec.Containers[0].Env, corev1.EnvVar{Name: "GENERATION", Value: "managed/0"})
	assert.NotEqual(t, deployed.ResourceVersion, s.deployment(t, agentNamespace).ResourceVersion)
	assert.Equal(t, bundle.Spec, s.agentBundle(t, "m").Spec, "its way to the hub is none of its Bundle's business")

	told := s.awaitBundle(t, edge, says("apiServerURL: https://moved.example:6443"))
	assert.Contains(t, manifestOf(told), "agentTLSMode: strict")

	s.patchSpec(t, "m", `{"redeployAgentGeneration":1}`)
	s.awaitGeneration(t, 1)
	assert.NotEqual(t, before.Status.Import.Registration, s.getCluster(t, "m").Status.Import.Registration, "a redeployment is a new one")
	s.awaitBundle(t, "m", says("managed/1"))
	assert.Contains(t, s.deployment(t, agentNamespace).Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "GENERATION", Value: "managed/1"})
}

func TestARevokedCredentialHeals(t *testing.T) {
	s := newStage(t, withoutBundles)
	agentNamespace, r := s.adopted(t, "m")
	edge := s.edge(t, "edge")
	key := s.getCluster(t, "m").Status.Import.Registration
	secrets := s.member.Kubernetes.CoreV1().Secrets(agentNamespace)
	require.NoError(t, secrets.Delete(t.Context(), registration.BootstrapSecret, metav1.DeleteOptions{}), "as the agent does")

	s.revoke(t, "m")
	healed := s.eventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		return c.Status.Import.Registration != key, "the agent is not told to register anew; " + s.imported(t)
	})
	assert.Equal(t, healed.Status.Import.Registration, s.bootstrapSecret(t, agentNamespace)["registration"])
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionRegistered, "False CredentialRevoked")
	again := s.registerWith(t, "m", agentNamespace, "again")
	requireGone(t, s.hub.Fleet.ClusterRegistrations(s.namespace).Get, "ClusterRegistration", r.request.Name)
	s.beat(t, "m", agentNamespace, "managed/0")
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionRegistered, "True Registered")
	assert.Equal(t, healed.Status.Import, s.getCluster(t, "m").Status.Import, "once")
	assert.NotEqual(t, r.bearer(), again.bearer())

	s.revoke(t, edge)
	told := s.hub.ClusterCondition(t, s.namespace, edge, fleet.ConditionRegistered, "False CredentialRevoked")
	assert.Contains(t, testenv.Condition(told.Status.Conditions, fleet.ConditionRegistered), "create a ClusterRegistrationToken")
}

// revoke deletes the ServiceAccounts of a Cluster's agent.
func (s *stage) revoke(t *testing.T, cluster string) {
	t.Helper()
	accounts := s.hub.Kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(s.namespace, cluster))
	require.NoError(t, accounts.DeleteCollection(t.Context(), metav1.DeleteOptions{}, ours))
}

func TestABrokenClusterDoesNotKeepOthersFromTheirBundle(t *testing.T) {
	s := newStage(t, withoutBundles)
	_, err := s.hub.Fleet.Bundles(s.namespace).Create(t.Context(), &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet-agent-taken"}, Spec: fleet.BundleSpec{Paused: true},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	agentNamespace := s.member.Namespace(t)
	s.importInto(t, "taken", agentNamespace)
	s.beat(t, "taken", agentNamespace, "managed/0")
	s.hub.ClusterCondition(t, s.namespace, "taken", fleet.ConditionReconciled, "False NameConflict")
	s.hub.Import(t, s.namespace, "silent", s.member, func(c *fleet.Cluster) { c.Spec.KubeConfigSecret = "missing" })

	s.adopted(t, "sound")
	assert.True(t, s.agentBundle(t, "taken").Spec.Paused)
	assert.Empty(t, s.agentBundle(t, "taken").Spec.Resources)
	require.NoError(t, s.hub.Fleet.Bundles(s.namespace).Delete(t.Context(), "fleet-agent-taken", metav1.DeleteOptions{}))
}

func TestAChangeOfOneClusterWritesNothingElsewhere(t *testing.T) {
	r := &recorder{}
	s := newStage(t, withoutBundles, r.wrap)
	for n := range 3 {
		s.adopted(t, fmt.Sprintf("m%d", n))
	}
	s.edge(t, "edge")
	r.settle(t)

	_, err := s.hub.Fleet.Clusters(s.namespace).Patch(t.Context(), "m0", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	assert.Empty(t, r.settle(t), "a label is nobody's business")

	s.patchSpec(t, "m1", `{"hostNetwork":true}`)
	s.awaitBundle(t, "m1", says("hostNetwork: true"))
	var writes []string
	for _, w := range writesIn(r.settle(t)) {
		writes = append(writes, w.method+" "+w.path[strings.LastIndex(w.path, s.namespace)+len(s.namespace):])
	}
	assert.ElementsMatch(t, []string{"PATCH /bundles/fleet-agent-m1", "PATCH /clusters/m1/status"}, writes)
}

func TestADamagedBundleIsRepaired(t *testing.T) {
	s := newStage(t, withoutBundles)
	s.adopted(t, "m")
	bundles := s.hub.Fleet.Bundles(s.namespace)
	sound := s.agentBundle(t, "m")
	for name, patch := range map[string]string{
		"edited": `{"spec":{"resources":[{"name":"agent.yaml","content":"x"}],"targets":[{"clusterSelector":{}}],"defaultNamespace":"x"}}`,
		"owned": fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"fleet.cattle.io/v1alpha1","kind":"Cluster","name":"m","uid":%q}]}}`,
			s.getCluster(t, "m").UID),
		"emptied": `{"spec":{"helm":null,"resources":null,"targets":null}}`,
	} {
		_, err := bundles.Patch(t.Context(), sound.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err, name)
		repaired := s.awaitBundle(t, "m", func(b *fleet.Bundle) bool {
			return assert.ObjectsAreEqual(sound.Spec, b.Spec) && len(b.OwnerReferences) == 0
		})
		assert.Equal(t, sound.UID, repaired.UID)
	}
	require.NoError(t, bundles.Delete(t.Context(), sound.Name, metav1.DeleteOptions{}))
	again := s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return b.UID != sound.UID })
	assert.Equal(t, sound.Spec, again.Spec)
}

func TestTheBundleComesAndGoesWithTheWish(t *testing.T) {
	s := newStage(t, withoutBundles)
	s.adopted(t, "m")
	relabel := func(labels string) {
		_, err := s.hub.Fleet.Clusters(s.namespace).Patch(t.Context(), "m", types.MergePatchType, []byte(`{"metadata":{"labels":`+labels+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	gone := func() { requireGone(t, s.hub.Fleet.Bundles(s.namespace).Get, "Bundle", "fleet-agent-m") }

	relabel(`{"fleet.cattle.io/non-managed-agent":"x"}`)
	gone()
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionReconciled, "True AgentNotManaged")
	relabel(`null`)
	s.awaitBundle(t, "m", says("managed/0"))
	relabel(`{"fleet.cattle.io/cluster-management":"other"}`)
	gone()
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionReconciled, "True ManagedElsewhere")
	relabel(`null`)
	s.awaitBundle(t, "m", says("managed/0"))

	settings := s.hub.Reachable()
	settings["manageAgent"] = false
	s.hub.Configure(t, settings)
	gone()
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionReconciled, "True AgentNotManaged")
	s.hub.Configure(t, s.hub.Reachable())
	s.awaitBundle(t, "m", says("managed/0"))
}

func TestTheBundleMovesWithTheImportAndNotBefore(t *testing.T) {
	s := newStage(t, withoutBundles)
	first, _ := s.adopted(t, "m")
	second := s.member.Namespace(t)
	s.patchSecret(t, "m-kubeconfig", `{"stringData":{"value":"garbage"}}`)
	s.patchSpec(t, "m", `{"agentNamespace":"`+second+`"}`)
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionImported, "False KubeconfigInvalid")
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionReconciled, "Unknown WaitingForImport")
	assert.Equal(t, first, s.agentBundle(t, "m").Spec.DefaultNamespace)

	kubeconfig, err := json.Marshal(map[string]any{"data": map[string][]byte{"value": s.member.Kubeconfig()}})
	require.NoError(t, err)
	s.patchSecret(t, "m-kubeconfig", string(kubeconfig))
	s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return b.Spec.DefaultNamespace == second && says("namespace: "+second)(b) })
	requireThere(t, s.member.Kubernetes.CoreV1().Secrets(second).Get, registration.BootstrapSecret)

	s.patchSpec(t, "m", `{"agentNamespace":null}`)
	s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return b.Spec.DefaultNamespace == systemNamespace })
}

func TestAPullSecretIsCopiedAgainWhenItChangesAndNothingElseIs(t *testing.T) {
	s := newStage(t, withoutBundles)
	name := "pull-" + s.namespace
	s.hub.WriteSecret(t, systemNamespace, name, map[string][]byte{"a": []byte("1")})
	settings := s.hub.Reachable()
	settings["imagePullSecrets"] = []map[string]string{{"name": name}}
	s.hub.Configure(t, settings)
	agentNamespace, _ := s.adopted(t, "m")
	secrets := s.member.Kubernetes.CoreV1().Secrets(agentNamespace)
	assert.Equal(t, map[string]string{"a": "1"}, asText(requireThere(t, secrets.Get, name).Data))
	assert.Contains(t, manifestOf(s.agentBundle(t, "m")), "name: "+name)
	assert.NotContains(t, manifestOf(s.agentBundle(t, "m")), "kind: Secret")
	deployed := s.deployment(t, agentNamespace)

	s.hub.WriteSecret(t, systemNamespace, name, map[string][]byte{"a": []byte("2")})
	testenv.Eventually(t, func() (bool, string) {
		data := asText(requireThere(t, secrets.Get, name).Data)
		return data["a"] == "2", fmt.Sprintf("the copy is %v; %s", data, s.imported(t))
	})
	assert.Equal(t, deployed.ResourceVersion, s.deployment(t, agentNamespace).ResourceVersion)

	s.hub.Configure(t, s.hub.Reachable())
	requireGone(t, secrets.Get, "Secret", name)
	s.awaitBundle(t, "m", func(b *fleet.Bundle) bool { return !says(name)(b) })
}

// The hub dies right after each of its writes in turn, from the grant of the request to the Bundle of the agent.
func TestAHubThatDiesAtAnyWriteEndsWithTheSameBundle(t *testing.T) {
	hub, member := clusters(t)
	hub.Configure(t, hub.Reachable())
	supervised := hub.SupervisedHub(t)
	s := &stage{hub: hub, member: member, namespace: hub.Namespace(t)}
	for n := 1; n <= 8; n++ {
		name := fmt.Sprintf("m%d", n)
		began := time.Now()
		agentNamespace := member.Namespace(t)
		s.importInto(t, name, agentNamespace)
		s.registerWith(t, name, agentNamespace, name)
		supervised.Strike(testenv.Kill, n)
		s.beat(t, name, agentNamespace, "managed/0")
		s.patchSpec(t, name, `{"privateRepoURL":"registry.example"}`)
		s.awaitBundle(t, name, says("registry.example"))
		s.eventuallyCluster(t, name, func(c *fleet.Cluster) (bool, string) {
			return c.Status.AgentPrivateRepoURL == "registry.example", "the status does not say what was delivered"
		})
		s.hub.ClusterCondition(t, s.namespace, name, fleet.ConditionReconciled, "True Reconciled")
		write := supervised.Struck()
		t.Logf("%d %s %s", n, write, time.Since(began).Round(time.Millisecond))
		supervised.Strike(testenv.Kill, 0)
		if write == "" {
			require.Greater(t, n, 1)
			break
		}
	}
	bundles, err := hub.Fleet.Bundles(s.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, bundle := range bundles.Items {
		assert.Equal(t, []string{fleet.BundleFinalizer}, bundle.Finalizers)
		assert.Empty(t, bundle.OwnerReferences)
	}
}
