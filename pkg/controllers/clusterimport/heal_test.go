package clusterimport

import (
	"errors"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
)

// requestOf is a granted request, void for a reason or not.
func requestOf(name, reason string) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("r-" + name)},
		Status: fleet.ClusterRegistrationStatus{Granted: true, Conditions: []genericcondition.GenericCondition{
			{Type: fleet.ConditionGranted, Reason: reason},
		}},
	}
}

// heard makes the agent one that was heard of, started that way.
func heard(c *fleet.Cluster, generation string) {
	c.Status.Agent = fleet.AgentStatus{LastSeen: metav1.NewTime(start), Namespace: system, Generation: generation}
}

func TestRevokedCredentialIsHealedOnce(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	require.True(t, o.until(t, c).IsDone())
	first := c.Status.Import.Registration
	heard(c, first)
	o.all = []*fleet.ClusterRegistration{requestOf("r1", fleet.ReasonCredentialRevoked)}
	require.True(t, o.until(t, c).IsDone())
	second := c.Status.Import.Registration
	assert.NotEqual(t, first, second, "the agent is told to register anew")
	assert.True(t, c.Status.Agent.LastSeen.IsZero())

	requests := len(m.requests)
	for range 3 {
		require.True(t, o.until(t, c).IsDone())
	}
	assert.Len(t, m.requests, requests, "once for each revoked credential")

	o.all = []*fleet.ClusterRegistration{requestOf("r2", fleet.ReasonGranted)}
	heard(c, second)
	require.True(t, o.until(t, c).IsDone())
	assert.Equal(t, second, c.Status.Import.Registration, "what is over asks for nothing")
	assert.Len(t, m.requests, requests)
}

func TestAgentThatIsSilentAndHasNoRequestIsHealed(t *testing.T) {
	c := fresh()
	o, _ := workFor(t, c)
	require.True(t, o.until(t, c).IsDone())
	first := c.Status.Import.Registration
	heard(c, first)
	require.True(t, o.until(t, c).IsDone())
	assert.Equal(t, first, c.Status.Import.Registration, "while it is heard of, it has a credential")
	silent(c)
	require.True(t, o.until(t, c).IsDone())
	assert.NotEqual(t, first, c.Status.Import.Registration)
}

func TestAgentThatWasAwayUntilItsCredentialHadEndedIsHealedOnce(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	o.all = []*fleet.ClusterRegistration{requestOf("r1", fleet.ReasonGranted)}
	require.True(t, o.until(t, c).IsDone())
	first := c.Status.Import.Registration
	heard(c, first)
	end := metav1.NewTime(o.clock.Now().Add(time.Hour))
	c.Status.Agent.CredentialExpires = &end
	silent(c)
	requests := len(m.requests)
	o.clock.Step(time.Hour)
	require.True(t, o.until(t, c).IsDone())
	assert.Len(t, m.requests, requests, "the clocks may differ by that much")
	o.clock.Step(time.Minute)
	require.True(t, o.until(t, c).IsDone())
	assert.NotEqual(t, first, c.Status.Import.Registration, "the agent is told to register anew")
	assert.True(t, c.Status.Agent.LastSeen.IsZero())
	requests = len(m.requests)
	for range 3 {
		o.clock.Step(time.Hour)
		require.True(t, o.until(t, c).IsDone())
	}
	assert.Len(t, m.requests, requests, "once")
}

func TestRequestsThatCannotBeReadHealNobody(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	o.notFound = errors.New("out")
	out := o.Reconcile(t.Context(), c)
	assert.Equal(t, fleet.ReasonError, out.Reason)
	o.pool.wait()
	assert.Empty(t, m.requests)
}

func TestHealingThatFailsIsTriedAgainByThePool(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	require.True(t, o.until(t, c).IsDone())
	heard(c, c.Status.Import.Registration)
	o.all = []*fleet.ClusterRegistration{requestOf("r1", fleet.ReasonCredentialRevoked)}
	m.fault = failAt(len(m.requests), "forbid")
	out := o.until(t, c)
	assert.Equal(t, fleet.ReasonForbidden, out.Reason)
	o.clock.Step(out.After)
	o.Reconcile(t.Context(), c)
	o.pool.wait()
	require.True(t, o.Reconcile(t.Context(), c).IsDone())
	assert.Equal(t, "uid/r-r1", c.Status.Import.RegistrationOf)
}

// deployed is the GENERATION of the agent's Deployment on the member.
func deployed(t *testing.T, m *fakeMember) string {
	t.Helper()
	object := m.state(t)["/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent"]
	require.NotNil(t, object)
	pod := object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	for _, env := range pod["containers"].([]any)[0].(map[string]any)["env"].([]any) {
		if v := env.(map[string]any); v["name"] == "GENERATION" {
			return v["value"].(string)
		}
	}
	return ""
}

func TestAgentWithItsBundleIsInstalledAsTheBundleHasIt(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	o.all = []*fleet.ClusterRegistration{requestOf("r1", fleet.ReasonGranted)}
	require.True(t, o.until(t, c).IsDone())
	key := c.Status.Import.Registration
	assert.Equal(t, key, deployed(t, m))
	heard(c, "managed/0")

	requests := len(m.requests)
	c.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "A", Value: "b"}}
	require.True(t, o.until(t, c).IsDone())
	assert.Len(t, m.requests, requests, "its Bundle brings the settings")

	c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
	require.True(t, o.until(t, c).IsDone())
	assert.Greater(t, len(m.requests), requests, "but not a PriorityClass")
	assert.Equal(t, "managed/0", deployed(t, m))
	assert.Equal(t, key, c.Status.Import.Registration)
	assert.False(t, c.Status.Agent.LastSeen.IsZero(), "it stays registered")

	c.Spec.RedeployAgentGeneration = 1
	require.True(t, o.until(t, c).IsDone())
	assert.Equal(t, "managed/1", deployed(t, m))
	assert.NotEqual(t, key, c.Status.Import.Registration)
	assert.True(t, c.Status.Agent.LastSeen.IsZero())
}

func TestAnotherURLIsDeliveredWithoutANewRegistration(t *testing.T) {
	for name, generation := range map[string]string{"as installed": "x/0", "with its Bundle": "managed/0"} {
		t.Run(name, func(t *testing.T) {
			c := fresh()
			o, _ := workFor(t, c)
			require.True(t, o.until(t, c).IsDone())
			key := c.Status.Import.Registration
			heard(c, generation)
			moved := hubConfig
			moved.APIServerURL = "https://moved"
			o.Config.Set(moved)
			require.True(t, o.until(t, c).IsDone())
			assert.Equal(t, "https://moved", c.Status.APIServerURL)
			assert.Equal(t, key, c.Status.Import.Registration)
			assert.False(t, c.Status.Agent.LastSeen.IsZero())
		})
	}
}

func TestAgentOfAnotherReleaseRegistersAtAnotherURL(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	require.True(t, o.until(t, c).IsDone())
	key := c.Status.Import.Registration
	heard(c, "")
	m.put(credentialPath, map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"kubeconfig": "eA=="}})
	moved := hubConfig
	moved.APIServerURL = "https://moved"
	o.Config.Set(moved)
	require.True(t, o.until(t, c).IsDone())
	assert.NotEqual(t, key, c.Status.Import.Registration)
	assert.Equal(t, c.Status.Import.Registration, deployed(t, m), "which restarts it")
	assert.NotContains(t, m.paths(), credentialPath)
}

func TestSilentAgentIsInstalledAsItShouldBe(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	o.all = []*fleet.ClusterRegistration{requestOf("r1", fleet.ReasonGranted)}
	require.True(t, o.until(t, c).IsDone())
	heard(c, "managed/0")
	requests := len(m.requests)
	image := hubConfig
	image.AgentImage = "another:image"
	o.Config.Set(image)
	require.True(t, o.until(t, c).IsDone())
	assert.Len(t, m.requests, requests, "its Bundle brings the image")
	silent(c)
	require.True(t, o.until(t, c).IsDone())
	assert.Greater(t, len(m.requests), requests, "perhaps that image keeps it from starting, so it gets the one of now from here")
	requests = len(m.requests)
	require.True(t, o.until(t, c).IsDone())
	assert.Len(t, m.requests, requests, "once")
}

func TestAgentThatIsNotManagedGetsSettingsByImport(t *testing.T) {
	no := false
	c := fresh()
	o, m := workFor(t, c)
	unmanaged := hubConfig
	unmanaged.ManageAgent = &no
	o.Config.Set(unmanaged)
	require.True(t, o.until(t, c).IsDone())
	heard(c, "managed/0")
	c.Spec.PrivateRepoURL = "registry"
	require.True(t, o.until(t, c).IsDone())
	assert.Equal(t, c.Status.Import.Registration, deployed(t, m))
	assert.Equal(t, "registry", c.Status.AgentPrivateRepoURL)
}

// pulling is a Cluster whose agent has a copy of the hub's image pull Secret.
func pulling(t *testing.T) (*office, *fakeMember, *fleet.Cluster, *corev1.Secret) {
	t.Helper()
	c := fresh()
	o, m := workFor(t, c)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "pull", UID: "p", ResourceVersion: "1"},
		Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{}")},
	}
	require.NoError(t, o.kube.Tracker().Add(secret))
	o.see(t, secret)
	hub := hubConfig
	hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}}
	o.Config.Set(hub)
	require.True(t, o.until(t, c).IsDone())
	heard(c, "managed/0")
	o.all = []*fleet.ClusterRegistration{requestOf("r1", fleet.ReasonGranted)}
	require.True(t, o.until(t, c).IsDone())
	return o, m, c, secret
}

func (o *office) change(t *testing.T, secret *corev1.Secret, version, data string) {
	t.Helper()
	changed := secret.DeepCopy()
	changed.ResourceVersion, changed.Data = version, map[string][]byte{corev1.DockerConfigJsonKey: []byte(data)}
	require.NoError(t, o.kube.Tracker().Update(secretsResource, changed, system))
	o.see(t, changed)
}

const copyPath = "/api/v1/namespaces/" + system + "/secrets/pull"

// settle reconciles until there is nothing left to do.
func (o *office) settle(t *testing.T, c *fleet.Cluster) {
	t.Helper()
	for range 3 {
		out := o.Reconcile(t.Context(), c)
		require.True(t, out.IsDone(), out.Message)
		o.pool.wait()
	}
}

func TestChangedPullSecretIsCopiedAndNothingElse(t *testing.T) {
	o, m, c, secret := pulling(t)
	assert.Equal(t, []string{"pull"}, c.Status.Import.PullSecrets)
	m.requests = nil
	o.change(t, secret, "2", "changed")
	o.settle(t, c)
	assert.Len(t, m.requests, 3, "version, namespace, and the copy")
	assert.Equal(t, map[string]any{".dockerconfigjson": "Y2hhbmdlZA=="}, m.state(t)[copyPath]["data"])
}

func TestPullSecretThatOnlyGotAnotherVersionIsNotCopied(t *testing.T) {
	o, m, c, secret := pulling(t)
	m.requests = nil
	o.change(t, secret, "2", "{}")
	o.kube.ClearActions()
	o.settle(t, c)
	assert.Empty(t, m.requests)
	assert.Len(t, o.kube.Actions(), 1, "it is read once, for all Clusters")
}

func TestPullSecretThatIsWantedNoMoreIsRemoved(t *testing.T) {
	o, m, c, _ := pulling(t)
	o.Config.Set(hubConfig)
	o.settle(t, c)
	assert.NotContains(t, m.paths(), copyPath)
	assert.Empty(t, c.Status.Import.PullSecrets)
}

func TestPullSecretThatIsAwayForAMomentTroublesNobody(t *testing.T) {
	o, m, c, secret := pulling(t)
	require.NoError(t, o.kube.Tracker().Delete(secretsResource, system, "pull"))
	require.NoError(t, o.secrets.informer.GetStore().Delete(&metav1.PartialObjectMetadata{ObjectMeta: secret.ObjectMeta}))
	m.requests = nil
	o.settle(t, c)
	assert.Empty(t, m.requests)

	hub := hubConfig
	hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}, {Name: "another"}}
	o.Config.Set(hub)
	assert.Equal(t, fleet.ReasonPullSecretMissing, o.Reconcile(t.Context(), c).Reason, "but one that was never copied does")
}

func TestCopyingAPullSecretThatFailsIsToldAndTriedAgain(t *testing.T) {
	o, m, c, secret := pulling(t)
	for at := range 3 {
		m.fault = failAt(len(m.requests)+at, "forbid")
		o.change(t, secret, "1"+string(rune('0'+at)), "changed "+string(rune('a'+at)))
		o.Reconcile(t.Context(), c)
		o.pool.wait()
		out := o.Reconcile(t.Context(), c)
		assert.Equal(t, fleet.ReasonForbidden, out.Reason, "request %d", at)
		m.fault = nil
		o.clock.Step(out.After)
		o.Reconcile(t.Context(), c)
		o.pool.wait()
		o.settle(t, c)
		assert.NotContains(t, out.Message, "changed")
	}
	o.fail("get", "secrets", errors.New("out"))
	o.change(t, secret, "20", "more")
	assert.Equal(t, fleet.ReasonError, o.Reconcile(t.Context(), c).Reason)
}

func TestCopiesOfPullSecretsDoNotStayBehindWhenTheAgentMoves(t *testing.T) {
	o, m, c, _ := pulling(t)
	c.Spec.AgentNamespace = "elsewhere"
	require.True(t, o.until(t, c).IsDone())
	assert.Contains(t, m.paths(), "/api/v1/namespaces/elsewhere/secrets/pull")
	c.Status.Agent = fleet.AgentStatus{Namespace: "elsewhere", LastSeen: metav1.NewTime(start), Generation: "managed/0"}
	o.settle(t, c)
	assert.NotContains(t, m.paths(), copyPath)
}

func TestOnlyPullSecretsOfTheConfigurationConcernAllClusters(t *testing.T) {
	o, _, _, secret := pulling(t)
	assert.True(t, o.isPullSecret(secret))
	other := secret.DeepCopy()
	other.Namespace = "ns"
	assert.False(t, o.isPullSecret(other))
	other = secret.DeepCopy()
	other.Name = "other"
	assert.False(t, o.isPullSecret(other))
}
