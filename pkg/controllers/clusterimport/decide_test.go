package clusterimport

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/access"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

const system = "cattle-fleet-system"

// installed is a Cluster whose agent this release has installed.
func installed() *fleet.Cluster {
	c := &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid"},
		Spec:       fleet.ClusterSpec{ClientID: "id", KubeConfigSecret: "kbcfg"},
		Status: fleet.ClusterStatus{
			AgentDeployedGeneration: ptr.To(int64(0)), AgentMigrated: true, CattleNamespaceMigrated: true, AgentNamespaceMigrated: true,
			Import: &fleet.ImportStatus{AgentNamespace: system},
			Agent:  fleet.AgentStatus{LastSeen: metav1.Now(), Namespace: system},
		},
	}
	agentspec.WantedSettings(c.Spec).Record(&c.Status)
	return c
}

func disconnect(c *fleet.Cluster) {
	result.Set(&c.Status.Conditions, fleet.ConditionConnected, result.Stalled(fleet.ReasonDisconnected, ""), start)
}

func TestWhatOnTheClusterAsksForAnImport(t *testing.T) {
	const settings, namespace, older = "the agent's settings changed", "the agent's namespace changed", "an older release installed the agent"
	for _, row := range []struct {
		name   string
		change func(*fleet.Cluster)
		wanted string
		why    string

		tokenGone, served bool
		cause             string
	}{
		{name: "nothing"},
		{name: "no agent yet", change: func(c *fleet.Cluster) { c.Status.AgentDeployedGeneration = nil }, why: "no agent was installed yet"},
		{name: "not migrated", change: func(c *fleet.Cluster) { c.Status.AgentMigrated = false }, why: older},
		{name: "not migrated from the first namespace", change: func(c *fleet.Cluster) { c.Status.CattleNamespaceMigrated = false }, why: older},
		{name: "namespace not migrated", change: func(c *fleet.Cluster) { c.Status.AgentNamespaceMigrated = false }, why: older},
		{name: "a person wants it", change: func(c *fleet.Cluster) { c.Spec.RedeployAgentGeneration = 1 }, why: "spec.redeployAgentGeneration changed"},
		{name: "a server counts backwards", change: func(c *fleet.Cluster) { c.Spec.RedeployAgentGeneration = -1 }, why: "spec.redeployAgentGeneration changed"},
		{name: "another component says so", change: func(c *fleet.Cluster) { c.Status.AgentConfigChanged = true }, why: settings},
		{name: "a variable", change: func(c *fleet.Cluster) { c.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "A"}} }, why: settings},
		{name: "an empty list is none", change: func(c *fleet.Cluster) { c.Spec.AgentEnvVars = []corev1.EnvVar{} }},
		{name: "an affinity", change: func(c *fleet.Cluster) { c.Spec.AgentAffinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}} }, why: settings},
		{name: "a toleration", change: func(c *fleet.Cluster) { c.Spec.AgentTolerations = []corev1.Toleration{{Key: "k"}} }, why: settings},
		{name: "a limit", change: func(c *fleet.Cluster) {
			c.Spec.AgentResources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{}, Claims: []corev1.ResourceClaim{{Name: "x"}}}
		}, why: settings},
		{name: "the host's network", change: func(c *fleet.Cluster) { c.Spec.HostNetwork = ptr.To(true) }, why: settings},
		{name: "not the host's network, said twice", change: func(c *fleet.Cluster) { c.Spec.HostNetwork = ptr.To(false) }},
		{name: "a registry", change: func(c *fleet.Cluster) { c.Spec.PrivateRepoURL = "registry" }, why: settings},
		{name: "a priority", change: func(c *fleet.Cluster) {
			c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
		}, why: settings},
		{name: "a token that ended before the agent came", tokenGone: true, why: "the agent did not register while its token was good", change: func(c *fleet.Cluster) {
			c.Status.Agent.LastSeen = metav1.Time{}
		}},
		{name: "a token that ended after the agent came", tokenGone: true},
		{name: "settings that the Bundle brings", served: true, change: func(c *fleet.Cluster) { c.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "A"}} }},
		{name: "a priority, which no Bundle brings", served: true, why: settings, change: func(c *fleet.Cluster) {
			c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
		}},
		{name: "another component says so of an agent with a Bundle", served: true, why: settings, change: func(c *fleet.Cluster) { c.Status.AgentConfigChanged = true }},
		{name: "another image for an agent without a Bundle", why: settings, change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "other" }},
		{name: "another image that the Bundle brings", served: true, change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "other" }},
		{name: "the same image", change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "same" }},
		{name: "nobody knows how an agent runs that is heard of", change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "" }},
		{name: "nobody knows how an agent ran that is not heard of any more", why: settings, change: func(c *fleet.Cluster) {
			c.Status.Import.ManifestHash = ""
			disconnect(c)
		}},
		{name: "an agent that is not heard of any more, and was installed like this", change: func(c *fleet.Cluster) {
			c.Status.Import.ManifestHash = "same"
			disconnect(c)
		}},
		{name: "a credential that is void", cause: "r1", why: "the agent's credential is void"},
		{name: "a credential that another release granted, and that is void", cause: "r1", why: "the agent's credential is void", change: func(c *fleet.Cluster) { c.Status.Import = nil }},
		{name: "a void credential that the agent was told of", cause: "r1", change: func(c *fleet.Cluster) { c.Status.Import.RegistrationOf = "uid/r1" }},
		{name: "another void one since", cause: "r2", why: "the agent's credential is void", change: func(c *fleet.Cluster) { c.Status.Import.RegistrationOf = "uid/r1" }},
		{name: "another namespace", wanted: "elsewhere", why: namespace},
		{name: "back to the usual one", change: func(c *fleet.Cluster) { c.Status.Import.AgentNamespace = "elsewhere" }, why: namespace},
		{name: "another one than another release installed to", wanted: "elsewhere", why: namespace, change: func(c *fleet.Cluster) {
			c.Status.Import, c.Spec.AgentNamespace, c.Status.Agent.Namespace = nil, "elsewhere", system
		}},
		{name: "the one another release installed to", wanted: "elsewhere", change: func(c *fleet.Cluster) {
			c.Status.Import, c.Spec.AgentNamespace, c.Status.Agent.Namespace = nil, "elsewhere", "elsewhere"
		}},
		{name: "nobody knows where another release installed to", change: func(c *fleet.Cluster) { c.Status.Import = nil }},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, wanted := installed(), system
			if row.change != nil {
				row.change(c)
			}
			if row.wanted != "" {
				wanted = row.wanted
			}
			f := facts{agentNamespace: wanted, tokenGone: row.tokenGone, served: row.served, manifest: "same", registrationFor: "uid"}
			if row.cause != "" {
				f.registrationFor = "uid/" + row.cause
			}
			assert.Equal(t, row.why, whyImport(c, f))
		})
	}
}

func TestSettingsRecordedOnceAskForNoOtherImport(t *testing.T) {
	c := installed()
	c.Spec.AgentEnvVars, c.Spec.HostNetwork, c.Spec.PrivateRepoURL = []corev1.EnvVar{{Name: "A", Value: "b"}}, ptr.To(true), "registry"
	f := facts{agentNamespace: system}
	require.NotEmpty(t, whyImport(c, f))
	agentspec.WantedSettings(c.Spec).Record(&c.Status)
	assert.Empty(t, whyImport(c, f))
	c.Spec.AgentEnvVars = nil
	assert.NotEmpty(t, whyImport(c, f), "taking it back is a change too")
}

func TestSameSecretAndSettingsAreNotLookedAtAgain(t *testing.T) {
	last := &fleet.ImportStatus{KubeConfigSecretVersion: "v", SettingsHash: "h"}
	assert.True(t, seen(last, "v", "h"))
	assert.False(t, seen(last, "w", "h"))
	assert.False(t, seen(last, "v", "i"))
	assert.False(t, seen(nil, "", ""))
}

// somePEM is a certificate of nobody.
func somePEM(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, &key.PublicKey, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestWhatTheAgentIsToldOfItsHub(t *testing.T) {
	ca, other := somePEM(t), somePEM(t)
	hub := config.Hub{APIServerURL: "https://config", APIServerCA: ca, GarbageCollectionInterval: metav1.Duration{Duration: time.Minute}}
	gc := hub.GarbageCollectionInterval
	for _, row := range []struct {
		name         string
		hub          config.Hub
		secret       map[string][]byte
		want         delivery
		reason, says string
	}{
		{
			name: "what the configuration says", hub: hub,
			want: delivery{apiServerURL: "https://config", apiServerCA: ca, tlsMode: config.TLSModeSystemStore, gcInterval: gc},
		},
		{
			name: "the Secret's URL wins", hub: hub, secret: map[string][]byte{"apiServerURL": []byte("https://secret")},
			want: delivery{apiServerURL: "https://secret", apiServerCA: ca, tlsMode: config.TLSModeSystemStore, gcInterval: gc, urlFromSecret: true},
		},
		{
			name: "the Secret's CA wins", hub: hub, secret: map[string][]byte{"apiServerCA": other},
			want: delivery{apiServerURL: "https://config", apiServerCA: other, tlsMode: config.TLSModeSystemStore, gcInterval: gc, caFromSecret: true},
		},
		{
			name: "an empty key is no key", hub: hub, secret: map[string][]byte{"apiServerURL": {}, "apiServerCA": {}},
			want: delivery{apiServerURL: "https://config", apiServerCA: ca, tlsMode: config.TLSModeSystemStore, gcInterval: gc},
		},
		{
			name: "no CA is one the system knows", hub: config.Hub{APIServerURL: "https://config", AgentTLSMode: config.TLSModeStrict},
			want: delivery{apiServerURL: "https://config", tlsMode: config.TLSModeStrict},
		},
		{name: "no URL anywhere", reason: fleet.ReasonAPIServerURLMissing, says: "ConfigMap fleet-controller"},
		{
			name: "a CA that is none", hub: config.Hub{APIServerURL: "https://config", APIServerCA: []byte("garbage")},
			reason: fleet.ReasonAPIServerCAInvalid, says: "correct it in the hub's configuration",
		},
		{
			name: "a CA that is none, in the Secret", hub: hub, secret: map[string][]byte{"apiServerCA": []byte("garbage")},
			reason: fleet.ReasonAPIServerCAInvalid, says: "correct it in the kubeconfig Secret",
		},
		{
			name: "PEM that is no certificate", hub: hub,
			secret: map[string][]byte{"apiServerCA": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})},
			reason: fleet.ReasonAPIServerCAInvalid, says: "no PEM certificate",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, problem := decideDelivery(row.hub, row.secret)
			assert.Equal(t, row.want, got)
			if row.reason == "" {
				assert.Nil(t, problem)
				return
			}
			require.NotNil(t, problem)
			assert.Equal(t, row.reason, problem.reason)
			assert.Contains(t, problem.message, row.says)
			assert.NotContains(t, problem.message, "garbage")
		})
	}
}

func TestWhatWasDeliveredIsNotDeliveredAgain(t *testing.T) {
	d := delivery{apiServerURL: "https://hub", apiServerCA: []byte("ca"), tlsMode: config.TLSModeStrict, gcInterval: metav1.Duration{Duration: time.Minute}}
	status := fleet.ClusterStatus{
		APIServerURL: "https://hub", APIServerCAHash: registration.CAHash([]byte("ca")), AgentTLSMode: "strict",
		GarbageCollectionInterval: &metav1.Duration{Duration: time.Minute},
	}
	assert.True(t, delivered(status, d))
	for name, change := range map[string]func(*fleet.ClusterStatus){
		"another URL":         func(s *fleet.ClusterStatus) { s.APIServerURL = "https://other" },
		"another CA":          func(s *fleet.ClusterStatus) { s.APIServerCAHash = registration.CAHash([]byte("other")) },
		"no CA":               func(s *fleet.ClusterStatus) { s.APIServerCAHash = emptyCAHash },
		"another TLS mode":    func(s *fleet.ClusterStatus) { s.AgentTLSMode = "system-store" },
		"another interval":    func(s *fleet.ClusterStatus) { s.GarbageCollectionInterval = &metav1.Duration{} },
		"no interval":         func(s *fleet.ClusterStatus) { s.GarbageCollectionInterval = nil },
		"nothing was, so far": func(s *fleet.ClusterStatus) { *s = fleet.ClusterStatus{} },
	} {
		changed := status
		change(&changed)
		assert.False(t, delivered(changed, d), name)
	}
}

func TestNoCAWasRecordedInTwoWays(t *testing.T) {
	d := delivery{apiServerURL: "https://hub", tlsMode: config.TLSModeStrict}
	for _, hash := range []string{registration.CAHash(nil), emptyCAHash} {
		assert.True(t, delivered(fleet.ClusterStatus{APIServerURL: "https://hub", AgentTLSMode: "strict", APIServerCAHash: hash}, d), hash)
	}
	hash, err := registration.StatusHash([]byte{})
	require.NoError(t, err)
	assert.Equal(t, emptyCAHash, hash)
}

func TestSettingsHashIsOfWhatAgentsAreTold(t *testing.T) {
	hub := config.Hub{APIServerURL: "https://hub"}
	assert.Equal(t, settingsHash(hub), settingsHash(config.Hub{APIServerURL: "https://hub", AgentTLSMode: config.TLSModeSystemStore}),
		"the default said and left unsaid are one")
	assert.Equal(t, settingsHash(hub), settingsHash(config.Hub{APIServerURL: "https://hub", IgnoreClusterRegistrationLabels: true}))
	for _, other := range []config.Hub{
		{APIServerURL: "https://other"},
		{APIServerURL: "https://hub", APIServerCA: []byte("ca")},
		{APIServerURL: "https://hub", AgentTLSMode: config.TLSModeStrict},
		{APIServerURL: "https://hub", GarbageCollectionInterval: metav1.Duration{Duration: time.Minute}},
	} {
		assert.NotEqual(t, settingsHash(hub), settingsHash(other))
	}
}

func TestWhereAKubeconfigMayComeFrom(t *testing.T) {
	for _, row := range []struct {
		name, from, annotation string
		may                    bool
	}{
		{"the Cluster's own namespace", "", "", true},
		{"the same, by name", "mine", "", true},
		{"the one where management servers keep them", "fleet-default", "", true},
		{"the hub's, where the kubeconfig of the hub may be", "fleet-local", "", false},
		{"the hub's own", "cattle-fleet-system", "", false},
		{"that of the credentials", "cattle-fleet-clusters-system", "", false},
		{"one of somebody else", "theirs", "", false},
		{"one whose name only begins as that of a cluster", "cluster-of-somebody", "", false},
		{"one that allows this namespace", "theirs", "mine", true},
		{"one that allows this among others", "theirs", "a, mine ,b", true},
		{"one that allows all", "theirs", "*", true},
		{"one that allows another", "theirs", "mine2,min", false},
		{"one that allows nobody", "theirs", ",", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "mine"}, Spec: fleet.ClusterSpec{KubeConfigSecretNamespace: row.from}}
			s := &corev1.Secret{}
			if row.annotation != "" {
				s.Annotations = map[string]string{fleet.KubeconfigAllowedAnnotation: row.annotation}
			}
			assert.Equal(t, row.may, access.MayUse(c, s))
		})
	}
}

func TestImportTokenBringsBackItsCluster(t *testing.T) {
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", OwnerReferences: []metav1.OwnerReference{
		{Kind: "ConfigMap", Name: "x"}, {Kind: "Cluster", Name: "c"},
	}}}
	assert.Equal(t, []types.NamespacedName{clusterKey("c")}, clusterOfToken(token))
	assert.Empty(t, clusterOfToken(&fleet.ClusterRegistrationToken{}))
}
