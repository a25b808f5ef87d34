package clusterimport

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/release"
)

// fresh is a Cluster that is to be imported.
func fresh() *fleet.Cluster {
	return &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid"},
		Spec:       fleet.ClusterSpec{ClientID: "id", KubeConfigSecret: "kbcfg"},
	}
}

// workFor gives an office with a member that works, its kubeconfig and its token.
func workFor(t *testing.T, cluster *fleet.Cluster) (*office, *fakeMember) {
	t.Helper()
	m := newFakeMember(t)
	o := newOffice(t, kubeconfigSecret(with(t, to(m.Server))))
	o.giveToken(t, cluster)
	return o, m
}

// until reconciles whenever a call to the member has ended, and returns the first outcome that is no wait.
func (o *office) until(t *testing.T, cluster *fleet.Cluster) result.Result {
	t.Helper()
	for range 5 {
		out := o.Reconcile(t.Context(), cluster)
		if !out.IsWait() {
			return out
		}
		o.pool.wait()
	}
	require.FailNow(t, "it waits for ever")
	return result.Result{}
}

func TestImportRunsThroughAndIsRecorded(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	first := o.Reconcile(t.Context(), c)
	assert.Equal(t, fleet.ReasonImporting, first.Reason)
	assert.True(t, first.IsWait(), "no worker waits for a member")
	out := o.until(t, c)
	require.True(t, out.IsDone(), out.Message)
	assert.Len(t, m.requests, 11, "a greeting, nine objects, and a look for a credential of an agent of another release")

	s := c.Status
	assert.Equal(t, ptr.To(int64(0)), s.AgentDeployedGeneration)
	assert.True(t, s.AgentMigrated && s.CattleNamespaceMigrated && s.AgentNamespaceMigrated)
	assert.Equal(t, "https://hub:6443", s.APIServerURL)
	assert.Equal(t, "system-store", s.AgentTLSMode)
	assert.Equal(t, &fleet.ImportStatus{
		KubeConfigSecretVersion: "u/1", SettingsHash: settingsHash(hubConfig), AgentNamespace: system,
		Registration: s.Import.Registration, RegistrationOf: "uid", Generation: s.Import.Registration, ManifestHash: s.Import.ManifestHash,
		Time: metav1.NewTime(start), StaleAgentNamespaces: s.Import.StaleAgentNamespaces,
	}, s.Import)
	assert.Empty(t, s.Import.StaleAgentNamespaces)
	assert.NotEmpty(t, s.Import.Registration)
}

func TestSettledClusterCostsNothing(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	o.until(t, c)
	settled, requests := c.DeepCopy(), len(m.requests)
	o.kube.ClearActions()
	o.pool.forget(clusterKey("c"))
	for range 3 {
		assert.True(t, o.Reconcile(t.Context(), c).IsDone())
	}
	o.pool.wait()
	assert.Equal(t, settled, c)
	assert.Empty(t, o.kube.Actions(), "not even a read")
	assert.Len(t, m.requests, requests)
}

func TestWhatKeepsAnImportFromBegin(t *testing.T) {
	foreignToken := func(o *office, _ *fleet.Cluster) { o.tokens.tokens["import-token-c"].OwnerReferences = nil }
	for _, row := range []struct {
		name   string
		change func(o *office, c *fleet.Cluster)
		reason string
		says   string
		status corev1.ConditionStatus
		after  time.Duration
	}{
		{
			name: "an agent that registers by itself", reason: fleet.ReasonAgentInitiated, status: corev1.ConditionTrue,
			change: func(_ *office, c *fleet.Cluster) { c.Spec.KubeConfigSecret = "" },
		},
		{
			name: "a local agent that nobody wants", reason: fleet.ReasonLocalAgentDisabled, status: corev1.ConditionTrue,
			change: func(o *office, c *fleet.Cluster) {
				c.Name = "local"
				o.Config.Set(config.Hub{Bootstrap: config.Bootstrap{Namespace: "ns", LocalAgentDisabled: true}})
			},
		},
		{
			name: "no Secret", reason: fleet.ReasonWaitingForKubeconfig, says: "Secret ns/other", status: corev1.ConditionUnknown,
			change: func(_ *office, c *fleet.Cluster) { c.Spec.KubeConfigSecret = "other" },
		},
		{
			name: "a Secret that went a moment ago", reason: fleet.ReasonWaitingForKubeconfig, status: corev1.ConditionUnknown,
			change: func(o *office, _ *fleet.Cluster) { _ = o.kube.Tracker().Delete(secretsResource, "ns", "kbcfg") },
		},
		{
			name: "a Secret that cannot be read", reason: fleet.ReasonError, says: "reading kubeconfig Secret ns/kbcfg: out", status: corev1.ConditionFalse,
			change: func(o *office, _ *fleet.Cluster) { o.fail("get", "secrets", errors.New("out")) },
		},
		{
			name: "no URL anywhere", reason: fleet.ReasonAPIServerURLMissing, status: corev1.ConditionFalse,
			change: func(o *office, _ *fleet.Cluster) { o.Config.Set(config.Hub{}) },
		},
		{
			name: "no token yet", reason: fleet.ReasonImporting, status: corev1.ConditionUnknown,
			change: func(o *office, _ *fleet.Cluster) { delete(o.tokens.tokens, "import-token-c") },
		},
		{
			name: "a token that cannot be made", reason: fleet.ReasonError, says: "creating ClusterRegistrationToken ns/import-token-c", status: corev1.ConditionFalse,
			change: func(o *office, _ *fleet.Cluster) {
				delete(o.tokens.tokens, "import-token-c")
				o.tokens.err = errors.New("out")
			},
		},
		{
			name: "a token of somebody else", reason: fleet.ReasonNameConflict, says: "ns/import-token-c", status: corev1.ConditionFalse,
			change: foreignToken, after: time.Minute,
		},
		{
			name: "a token that goes", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(o *office, _ *fleet.Cluster) {
				o.tokens.tokens["import-token-c"].DeletionTimestamp = ptr.To(metav1.Now())
			},
		},
		{
			name: "a token without values", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(o *office, _ *fleet.Cluster) { o.tokens.tokens["import-token-c"].Status.SecretName = "" },
		},
		{
			name: "a young token without values", reason: fleet.ReasonImporting, status: corev1.ConditionUnknown, after: tokenPatience - time.Second,
			change: func(o *office, _ *fleet.Cluster) {
				o.tokens.tokens["import-token-c"].Status.SecretName = ""
				o.tokens.tokens["import-token-c"].CreationTimestamp = metav1.NewTime(start.Add(-time.Second))
			},
		},
		{
			name: "a token from the future", reason: fleet.ReasonImporting, status: corev1.ConditionUnknown, after: tokenPatience,
			change: func(o *office, _ *fleet.Cluster) {
				o.tokens.tokens["import-token-c"].Status.SecretName = ""
				o.tokens.tokens["import-token-c"].CreationTimestamp = metav1.NewTime(start.Add(time.Hour))
			},
		},
		{
			name: "values that are not there", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown, after: time.Minute,
			change: func(o *office, _ *fleet.Cluster) { delete(o.values.secrets, "import-token-c") },
		},
		{
			name: "values that are none", reason: fleet.ReasonWaitingForToken, status: corev1.ConditionUnknown,
			change: func(o *office, _ *fleet.Cluster) { o.values.secrets["import-token-c"].Data = nil },
		},
		{
			name: "a pull Secret that is missing", reason: fleet.ReasonPullSecretMissing, says: system + "/pull", status: corev1.ConditionFalse, after: time.Minute,
			change: func(o *office, _ *fleet.Cluster) {
				hub := hubConfig
				hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "pull"}}
				o.Config.Set(hub)
			},
		},
		{
			name: "settings that contradict each other", reason: fleet.ReasonSettingsInvalid, status: corev1.ConditionFalse,
			change: func(_ *office, c *fleet.Cluster) {
				c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{
					PodDisruptionBudget: &fleet.PodDisruptionBudgetSpec{MinAvailable: "1", MaxUnavailable: "1"},
				}
			},
		},
		{
			name: "a Secret of somebody else", reason: fleet.ReasonKubeconfigNotAllowed, says: "annotates it with", status: corev1.ConditionFalse,
			change: func(o *office, c *fleet.Cluster) {
				c.Spec.KubeConfigSecretNamespace = "theirs"
				theirs := kubeconfigSecret(nil)
				theirs.Namespace = "theirs"
				_ = o.kube.Tracker().Add(theirs)
				_ = o.secrets.informer.GetStore().Add(&metav1.PartialObjectMetadata{ObjectMeta: theirs.ObjectMeta})
			},
		},
		{
			name: "a kubeconfig that is none", reason: fleet.ReasonKubeconfigInvalid, status: corev1.ConditionFalse,
			change: func(o *office, _ *fleet.Cluster) {
				_ = o.kube.Tracker().Update(secretsResource, kubeconfigSecret(map[string][]byte{"value": []byte("x")}), "ns")
			},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := fresh()
			o, m := workFor(t, c)
			row.change(o, c)
			before := c.DeepCopy()
			out := o.Reconcile(t.Context(), c)
			assert.Equal(t, row.reason, out.Reason, out.Message)
			assert.Equal(t, row.status, out.Status())
			assert.Contains(t, out.Message, row.says)
			assert.Equal(t, row.after, out.After)
			assert.Equal(t, before, c, "nothing is noted of what was not done")
			o.pool.wait()
			assert.Empty(t, m.requests, "the member is left alone")
			assert.NotContains(t, out.Message, confidential)
		})
	}
}

var secretsResource = corev1.SchemeGroupVersion.WithResource("secrets")

func (o *office) fail(verb, resource string, err error) {
	o.kube.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

func TestTokenIsMadeForTheClusterAndEndsWithIt(t *testing.T) {
	c := fresh()
	o, _ := workFor(t, c)
	delete(o.tokens.tokens, "import-token-c")
	o.Reconcile(t.Context(), c)
	require.Len(t, o.tokens.created, 1)
	assert.Equal(t, &fleet.ClusterRegistrationToken{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "import-token-c", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: "c", UID: "uid",
		}}},
		Spec: fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: 12 * time.Hour}},
	}, o.tokens.created[0])
}

func TestTokenIsMadeOnceWhileTheCacheHasNotSeenIt(t *testing.T) {
	c := fresh()
	o, _ := workFor(t, c)
	seen := o.tokens.tokens["import-token-c"]
	delete(o.tokens.tokens, "import-token-c")
	o.Reconcile(t.Context(), c)
	out := o.Reconcile(t.Context(), c)
	assert.Equal(t, fleet.ReasonImporting, out.Reason)
	assert.Equal(t, expectations.Timeout, out.After, "it may be deleted before anybody has seen it")
	assert.Len(t, o.tokens.created, 1)

	o.tokens.tokens["import-token-c"] = seen
	o.Reconcile(t.Context(), c)
	delete(o.tokens.tokens, "import-token-c") // by a person
	o.Reconcile(t.Context(), c)
	assert.Len(t, o.tokens.created, 2)

	o.clock.Step(expectations.Timeout)
	o.Reconcile(t.Context(), c)
	assert.Len(t, o.tokens.created, 3)
}

func TestFailedImportSaysSoAndIsTriedAgainInTime(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	m.fault = failAt(0, "forbid")
	out := o.until(t, c)
	assert.Equal(t, fleet.ReasonForbidden, out.Reason)
	assert.Greater(t, out.After, time.Duration(0))
	assert.Nil(t, c.Status.AgentDeployedGeneration)

	again := o.Reconcile(t.Context(), c)
	assert.Equal(t, out.Message, again.Message)
	assert.Len(t, m.requests, 1, "not before its time")

	m.fault = nil
	o.clock.Step(out.After)
	retrying := o.Reconcile(t.Context(), c)
	assert.Equal(t, out.Message, retrying.Message, "the same until it is known to work")
	o.pool.wait()
	assert.True(t, o.Reconcile(t.Context(), c).IsDone())
	assert.NotNil(t, c.Status.AgentDeployedGeneration)
}

func TestCorrectedKubeconfigIsTriedAtOnce(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	good := kubeconfigSecret(with(t, to(m.Server)))
	m.fault = failAt(0, "forbid")
	require.Equal(t, fleet.ReasonForbidden, o.until(t, c).Reason)
	m.fault = nil
	parsed := with(t, to(m.Server))
	good.Data = map[string][]byte{"value": append(parsed["value"], "\n# corrected\npreferences: {colors: true}\n"...)}
	good.ResourceVersion = "2"
	require.NoError(t, o.kube.Tracker().Update(secretsResource, good, "ns"))
	o.see(t, good)
	assert.True(t, o.until(t, c).IsDone(), "without waiting for the time of the next try")
}

func TestVanishedSecretDoesNotTroubleAnInstalledAgent(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	require.True(t, o.until(t, c).IsDone())
	requests := len(m.requests)
	require.NoError(t, o.secrets.informer.GetStore().Delete(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kbcfg"}}))
	assert.True(t, o.Reconcile(t.Context(), c).IsDone())

	back := kubeconfigSecret(with(t, to(m.Server)))
	back.UID, back.ResourceVersion = "another", "9"
	require.NoError(t, o.kube.Tracker().Update(secretsResource, back, "ns"))
	o.see(t, back)
	assert.True(t, o.Reconcile(t.Context(), c).IsDone())
	assert.Equal(t, "another/9", c.Status.Import.KubeConfigSecretVersion, "it was looked at")
	assert.Len(t, m.requests, requests, "and the same address is not delivered twice")
}

func TestKeysThatVanishedWithTheSecretAreWaitedFor(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	whole := kubeconfigSecret(with(t, to(m.Server)))
	whole.Data["apiServerURL"] = []byte("https://secret")
	whole.ResourceVersion = "2"
	require.NoError(t, o.kube.Tracker().Update(secretsResource, whole, "ns"))
	o.see(t, whole)
	require.True(t, o.until(t, c).IsDone())
	require.Equal(t, "https://secret", c.Status.APIServerURL)
	requests := len(m.requests)

	half := kubeconfigSecret(with(t, to(m.Server)))
	half.ResourceVersion, half.CreationTimestamp = "3", metav1.NewTime(start.Add(-time.Second))
	require.NoError(t, o.kube.Tracker().Update(secretsResource, half, "ns"))
	o.see(t, half)
	out := o.Reconcile(t.Context(), c)
	assert.True(t, out.IsSkip(), out.Message)
	assert.Equal(t, settle-time.Second, out.After)
	assert.Len(t, m.requests, requests)

	o.clock.Step(settle)
	require.True(t, o.until(t, c).IsDone())
	assert.Equal(t, "https://hub:6443", c.Status.APIServerURL, "it was meant")
}

func TestAgentThatMovedIsCleanedUpOnceTheNewOneIsHeardOf(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	require.True(t, o.until(t, c).IsDone())
	c.Spec.AgentNamespace = "elsewhere"
	require.True(t, o.until(t, c).IsDone())
	require.Equal(t, []string{system}, c.Status.Import.StaleAgentNamespaces)
	assert.Contains(t, m.paths(), "/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent", "the old one works until then")

	assert.True(t, o.Reconcile(t.Context(), c).IsDone())
	o.pool.wait()
	assert.Equal(t, []string{system}, c.Status.Import.StaleAgentNamespaces, "nobody was heard of")

	c.Status.Agent = fleet.AgentStatus{Namespace: "elsewhere", LastSeen: metav1.NewTime(start)}
	for range 2 {
		assert.True(t, o.Reconcile(t.Context(), c).IsDone())
		o.pool.wait()
	}
	assert.Empty(t, c.Status.Import.StaleAgentNamespaces)
	assert.NotContains(t, m.paths(), "/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent")
	assert.Contains(t, m.paths(), "/apis/apps/v1/namespaces/elsewhere/deployments/fleet-agent")
	assert.Contains(t, m.transcript(), "DELETE /api/v1/namespaces/"+system+"/secrets?labelSelector=name%3Dfleet-agent-c%2Cowner%3Dhelm",
		"the history of the release by which it kept itself up to date")
}

func TestWhatAnAgentDeployedGoesToTheOneInItsNewNamespace(t *testing.T) {
	m := newFakeMember(t)
	revision := func(namespace, name, deployment string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
			"namespace": namespace, "name": name, "labels": map[string]any{release.DeploymentLabel: deployment},
		}}
	}
	m.revisions = []any{revision("app", "sh.helm.release.v1.app.v1", "app"), revision("old", "sh.helm.release.v1.fleet-agent-c.v1", "fleet-agent-c")}
	c := fresh()
	c.Status.Import = &fleet.ImportStatus{AgentNamespace: "new"}
	require.Nil(t, m.connect(t).cleanMoved(t.Context(), c, "old", nil))
	transcript := m.transcript()
	assert.Contains(t, transcript, "GET /api/v1/secrets?labelSelector=muster.fleet.cattle.io%2Fagent-namespace%3Dold")
	assert.Contains(t, transcript, "PATCH /api/v1/namespaces/app/secrets/sh.helm.release.v1.app.v1")
	assert.Contains(t, transcript, release.AgentLabel+": new")
	assert.NotContains(t, transcript, "PATCH /api/v1/namespaces/old/secrets", "the earlier agent's own release is forgotten, not handed over")
}

func TestEachRequestOfCleaningUpAfterAMoveMayFail(t *testing.T) {
	c := installed()
	m := newFakeMember(t)
	require.Nil(t, m.connect(t).cleanMoved(t.Context(), c, "old", []string{"pull"}))
	all := len(m.requests)
	require.Greater(t, all, len(agentObjects("old")))
	for at := range all {
		broken := newFakeMember(t)
		broken.fault = failAt(at, "forbid")
		f := broken.connect(t).cleanMoved(t.Context(), c, "old", []string{"pull"})
		require.NotNil(t, f, "request %d", at)
		assert.Equal(t, fleet.ReasonForbidden, f.reason)
		assert.Contains(t, f.message, "removing the ")
		assert.Len(t, broken.requests, at+1)
	}
}

func TestMovingBackCleansTheOther(t *testing.T) {
	c := fresh()
	o, _ := workFor(t, c)
	for _, namespace := range []string{"", "elsewhere", ""} {
		c.Spec.AgentNamespace = namespace
		require.True(t, o.until(t, c).IsDone())
	}
	assert.Equal(t, []string{"elsewhere"}, c.Status.Import.StaleAgentNamespaces)
	assert.Equal(t, system, c.Status.Import.AgentNamespace)
}

func TestCleaningThatFailsIsOnTheClusterAndTriedAgain(t *testing.T) {
	c := fresh()
	o, m := workFor(t, c)
	require.True(t, o.until(t, c).IsDone())
	c.Status.Import.StaleAgentNamespaces = []string{"old"}
	c.Status.Agent = fleet.AgentStatus{Namespace: system, LastSeen: metav1.NewTime(start)}
	m.fault = failAt(len(m.requests), "forbid")
	o.Reconcile(t.Context(), c)
	o.pool.wait()
	out := o.Reconcile(t.Context(), c)
	assert.Equal(t, fleet.ReasonForbidden, out.Reason)
	assert.Equal(t, []string{"old"}, c.Status.Import.StaleAgentNamespaces)
	o.clock.Step(out.After)
	o.Reconcile(t.Context(), c)
	o.pool.wait()
	assert.True(t, o.Reconcile(t.Context(), c).IsDone())
	assert.Empty(t, c.Status.Import.StaleAgentNamespaces)
}

func TestPullSecretsOfTheClusterAreNotCopied(t *testing.T) {
	p := newPass(t, kubeconfigSecret(nil))
	p.hub.ImagePullSecrets = []config.LocalObjectReference{{Name: "hubs"}}
	for _, own := range [][]corev1.LocalObjectReference{{{Name: "own"}}, {}} {
		p.cluster.Spec.AgentPullSecrets = &own
		pull, problem, err := p.pullSecrets(context.Background())
		require.NoError(t, err)
		assert.Nil(t, problem)
		assert.Empty(t, pull)
	}
}

func TestALookAtAnAgentOfAnotherReleaseNotesWhereItIs(t *testing.T) {
	for _, row := range []struct{ name, reported, noted string }{
		{"where the agent says", "elsewhere", "elsewhere"},
		{"where it should be, when it does not say", "", system},
	} {
		p := newPass(t, kubeconfigSecret(nil))
		p.cluster.Status.Import, p.cluster.Status.Agent.Namespace = nil, row.reported
		p.remember()
		assert.Equal(t, row.noted, p.cluster.Status.Import.AgentNamespace, row.name)
	}
}
