package clusterimport

import (
	"encoding/pem"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/pki"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/credentialstatus"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

const system = "cattle-fleet-system"

// installed is a Cluster whose agent this version has installed.
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

func disconnect(c *fleet.Cluster) *fleet.Cluster {
	result.Set(&c.Status.Conditions, fleet.ConditionConnected, result.Stalled(fleet.ReasonDisconnected, ""), start)
	return c
}

func TestImportReason(t *testing.T) {
	const settings, namespace, older = "the agent's settings changed", "the agent's namespace changed", "an older version installed the agent"
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
		{name: "redeploy generation increased", change: func(c *fleet.Cluster) { c.Spec.RedeployAgentGeneration = 1 }, why: "spec.redeployAgentGeneration changed"},
		{name: "redeploy generation decreased", change: func(c *fleet.Cluster) { c.Spec.RedeployAgentGeneration = -1 }, why: "spec.redeployAgentGeneration changed"},
		{name: "agentConfigChanged set by another component", change: func(c *fleet.Cluster) { c.Status.AgentConfigChanged = true }, why: "status.agentConfigChanged is true"},
		{name: "a variable", change: func(c *fleet.Cluster) { c.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "A"}} }, why: settings},
		{name: "token expired before registration", tokenGone: true, why: "the agent did not register before its token expired", change: func(c *fleet.Cluster) {
			c.Status.Agent.LastSeen = metav1.Time{}
		}},
		{name: "token expired after registration", tokenGone: true},
		{name: "settings that the Bundle delivers", served: true, change: func(c *fleet.Cluster) { c.Spec.AgentEnvVars = []corev1.EnvVar{{Name: "A"}} }},
		{name: "a priority, which no Bundle delivers", served: true, why: settings, change: func(c *fleet.Cluster) {
			c.Spec.AgentSchedulingCustomization = &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}
		}},
		{name: "agentConfigChanged, agent with a Bundle", served: true, why: "status.agentConfigChanged is true", change: func(c *fleet.Cluster) { c.Status.AgentConfigChanged = true }},
		{name: "another image for an agent without a Bundle", why: settings, change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "other" }},
		{name: "another image that the Bundle delivers", served: true, change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "other" }},
		{name: "the same image", change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "same" }},
		{name: "connected agent, manifest not recorded", change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "" }},
		{name: "disconnected agent, manifest not recorded", why: settings, change: func(c *fleet.Cluster) {
			c.Status.Import.ManifestHash = ""
			disconnect(c)
		}},
		{name: "disconnected agent, the Bundle has delivered another manifest meanwhile", why: settings, change: func(c *fleet.Cluster) {
			c.Status.Import.ManifestHash = "changed"
			disconnect(c)
		}},
		{name: "connected agent, the Bundle has delivered another manifest", served: true, change: func(c *fleet.Cluster) { c.Status.Import.ManifestHash = "changed" }},
		{name: "disconnected agent, same manifest", change: func(c *fleet.Cluster) {
			c.Status.Import.ManifestHash = "same"
			disconnect(c)
		}},
		{name: "invalid credential", cause: "r1", why: "the agent's credential is invalid"},
		{name: "invalid credential of Fleet's hub", cause: "r1", why: "the agent's credential is invalid", change: func(c *fleet.Cluster) { c.Status.Import = nil }},
		{name: "invalid credential, already replaced", cause: "r1", change: func(c *fleet.Cluster) { c.Status.Import.RegistrationID = "uid/r1" }},
		{name: "another invalid credential since", cause: "r2", why: "the agent's credential is invalid", change: func(c *fleet.Cluster) { c.Status.Import.RegistrationID = "uid/r1" }},
		{name: "another namespace", wanted: "elsewhere", why: namespace},
		{name: "back to the default namespace", change: func(c *fleet.Cluster) { c.Status.Import.AgentNamespace = "elsewhere" }, why: namespace},
		{name: "other namespace than that of Fleet's hub", wanted: "elsewhere", why: namespace, change: func(c *fleet.Cluster) {
			c.Status.Import, c.Spec.AgentNamespace, c.Status.Agent.Namespace = nil, "elsewhere", system
		}},
		{name: "same namespace as that of Fleet's hub", wanted: "elsewhere", change: func(c *fleet.Cluster) {
			c.Status.Import, c.Spec.AgentNamespace, c.Status.Agent.Namespace = nil, "elsewhere", "elsewhere"
		}},
		{name: "namespace of Fleet's agent unknown", change: func(c *fleet.Cluster) { c.Status.Import = nil }},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, wanted := installed(), system
			if row.change != nil {
				row.change(c)
			}
			if row.wanted != "" {
				wanted = row.wanted
			}
			f := facts{agentNamespace: wanted, tokenGone: row.tokenGone, servedByBundle: row.served, manifestHash: "same", registrationID: "uid"}
			if row.cause != "" {
				f.registrationID = "uid/" + row.cause
			}
			assert.Equal(t, row.why, importReason(c, f))
		})
	}
}

func TestIsRecorded(t *testing.T) {
	last := &fleet.ImportStatus{KubeConfigSecretVersion: "v", SettingsHash: "h"}
	assert.True(t, isRecorded(last, "v", "h"))
	assert.False(t, isRecorded(last, "w", "h"))
	assert.False(t, isRecorded(last, "v", "i"))
	assert.False(t, isRecorded(nil, "", ""))
}

// somePEM returns a certificate.
func somePEM(t *testing.T) []byte {
	t.Helper()
	authority, err := pki.NewAuthority("", time.Now())
	require.NoError(t, err)
	return authority.Pair.Cert
}

func TestDecideHubInfo(t *testing.T) {
	ca, other := somePEM(t), somePEM(t)
	hub := config.Hub{APIServerURL: "https://config", APIServerCA: ca, GarbageCollectionInterval: metav1.Duration{Duration: time.Minute}}
	gc := hub.GarbageCollectionInterval
	for _, row := range []struct {
		name         string
		hub          config.Hub
		secret       map[string][]byte
		want         hubInfo
		reason, says string
	}{
		{
			name: "of the configuration", hub: hub,
			want: hubInfo{apiServerURL: "https://config", apiServerCA: ca, tlsMode: config.TLSModeSystemStore, gcInterval: gc},
		},
		{
			name: "the URL of the Secret overrides", hub: hub, secret: map[string][]byte{"apiServerURL": []byte("https://secret")},
			want: hubInfo{apiServerURL: "https://secret", apiServerCA: ca, tlsMode: config.TLSModeSystemStore, gcInterval: gc, urlFromSecret: true},
		},
		{
			name: "the CA of the Secret overrides", hub: hub, secret: map[string][]byte{"apiServerCA": other},
			want: hubInfo{apiServerURL: "https://config", apiServerCA: other, tlsMode: config.TLSModeSystemStore, gcInterval: gc, caFromSecret: true},
		},
		{
			name: "empty keys are ignored", hub: hub, secret: map[string][]byte{"apiServerURL": {}, "apiServerCA": {}},
			want: hubInfo{apiServerURL: "https://config", apiServerCA: ca, tlsMode: config.TLSModeSystemStore, gcInterval: gc},
		},
		{
			name: "no CA: the system knows it", hub: config.Hub{APIServerURL: "https://config", AgentTLSMode: config.TLSModeStrict},
			want: hubInfo{apiServerURL: "https://config", tlsMode: config.TLSModeStrict},
		},
		{name: "no URL anywhere", reason: fleet.ReasonAPIServerURLMissing, says: "ConfigMap fleet-controller"},
		{
			name: "invalid URL in the Secret", hub: hub, secret: map[string][]byte{"apiServerURL": []byte("htps://hub")},
			reason: fleet.ReasonAPIServerURLInvalid, says: "it is not a URL like https://hub.example.com; correct it",
		},
		{
			name: "invalid CA", hub: config.Hub{APIServerURL: "https://config", APIServerCA: []byte("garbage")},
			reason: fleet.ReasonAPIServerCAInvalid, says: "correct it in the hub's configuration",
		},
		{
			name: "invalid CA in the Secret", hub: hub, secret: map[string][]byte{"apiServerCA": []byte("garbage")},
			reason: fleet.ReasonAPIServerCAInvalid, says: "correct it in the kubeconfig Secret",
		},
		{
			name: "PEM without a certificate", hub: hub,
			secret: map[string][]byte{"apiServerCA": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})},
			reason: fleet.ReasonAPIServerCAInvalid, says: "not a PEM certificate",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, problem := decideHubInfo(row.hub, row.secret)
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

func TestIsInstalledWith(t *testing.T) {
	d := hubInfo{apiServerURL: "https://hub", apiServerCA: []byte("ca"), tlsMode: config.TLSModeStrict, gcInterval: metav1.Duration{Duration: time.Minute}}
	status := fleet.ClusterStatus{
		APIServerURL: "https://hub", APIServerCAHash: registration.CAHash([]byte("ca")), AgentTLSMode: "strict",
		GarbageCollectionInterval: &metav1.Duration{Duration: time.Minute},
	}
	assert.True(t, isInstalledWith(status, d))
	for name, change := range map[string]func(*fleet.ClusterStatus){
		"another URL":           func(s *fleet.ClusterStatus) { s.APIServerURL = "https://other" },
		"another CA":            func(s *fleet.ClusterStatus) { s.APIServerCAHash = registration.CAHash([]byte("other")) },
		"no CA":                 func(s *fleet.ClusterStatus) { s.APIServerCAHash = emptyCAHash },
		"another TLS mode":      func(s *fleet.ClusterStatus) { s.AgentTLSMode = "system-store" },
		"another interval":      func(s *fleet.ClusterStatus) { s.GarbageCollectionInterval = &metav1.Duration{} },
		"no interval":           func(s *fleet.ClusterStatus) { s.GarbageCollectionInterval = nil },
		"nothing delivered yet": func(s *fleet.ClusterStatus) { *s = fleet.ClusterStatus{} },
	} {
		changed := status
		change(&changed)
		assert.False(t, isInstalledWith(changed, d), name)
	}
}

func TestIsInstalledWith_noCA(t *testing.T) {
	d := hubInfo{apiServerURL: "https://hub", tlsMode: config.TLSModeStrict}
	for _, hash := range []string{registration.CAHash(nil), emptyCAHash} {
		assert.True(t, isInstalledWith(fleet.ClusterStatus{APIServerURL: "https://hub", AgentTLSMode: "strict", APIServerCAHash: hash}, d), hash)
	}
	hash, err := registration.StatusHash([]byte{})
	require.NoError(t, err)
	assert.Equal(t, emptyCAHash, hash)
}

func TestSettingsHash(t *testing.T) {
	hub := config.Hub{APIServerURL: "https://hub"}
	assert.Equal(t, settingsHash(hub), settingsHash(config.Hub{APIServerURL: "https://hub", AgentTLSMode: config.TLSModeSystemStore}),
		"an explicit default is the same as none")
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

func TestClusterOfToken(t *testing.T) {
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", OwnerReferences: []metav1.OwnerReference{
		{Kind: "ConfigMap", Name: "x"}, {Kind: "Cluster", Name: "c"},
	}}}
	assert.Equal(t, []types.NamespacedName{clusterKey("c")}, clusterOfToken(token))
	assert.Empty(t, clusterOfToken(&fleet.ClusterRegistrationToken{}))
}

func TestRegistrationID(t *testing.T) {
	heard := metav1.NewTime(time.Unix(1000, 0))
	revoked := credentialstatus.Status{Revoked: &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{UID: "r1"}}}
	granted := credentialstatus.Status{Granted: true}
	for _, row := range []struct {
		name     string
		change   func(*fleet.Cluster)
		requests credentialstatus.Status
		want     string
	}{
		{name: "a first import", change: func(c *fleet.Cluster) { c.Status.Import = nil }, want: "uid"},
		{name: "an agent that works", requests: granted, want: "uid"},
		{name: "revoked credential", requests: revoked, want: "uid/r1"},
		{
			name: "cause that has ended", requests: granted, want: "uid/r1",
			change: func(c *fleet.Cluster) { c.Status.Import.RegistrationID = "uid/r1" },
		},
		{
			name: "another cause", requests: revoked, want: "uid/r1",
			change: func(c *fleet.Cluster) { c.Status.Import.RegistrationID = "uid/r0" },
		},
		{
			name: "status of an earlier Cluster", requests: granted, want: "uid",
			change: func(c *fleet.Cluster) { c.Status.Import.RegistrationID = "earlier/r1" },
		},
		{name: "no request, agent connected", want: "uid"},
		{name: "no request, agent disconnected", change: func(c *fleet.Cluster) { disconnect(c) }, want: "uid/lost-1000"},
		{name: "agent disconnected, credential valid", requests: granted, change: func(c *fleet.Cluster) { disconnect(c) }, want: "uid"},
		{
			name: "agent never checked in", want: "uid",
			change: func(c *fleet.Cluster) { disconnect(c).Status.Agent.LastSeen = metav1.Time{} },
		},
		{name: "credential expired, agent disconnected", requests: granted, change: func(c *fleet.Cluster) {
			disconnect(c).Status.Agent.CredentialExpires = &metav1.Time{Time: heard.Add(58 * time.Minute)}
		}, want: "uid/expired-4480"},
		{name: "credential just expired", requests: granted, change: func(c *fleet.Cluster) {
			disconnect(c).Status.Agent.CredentialExpires = &metav1.Time{Time: heard.Add(59*time.Minute + time.Second)}
		}, want: "uid"},
		{name: "credential expired, agent connected", requests: granted, change: func(c *fleet.Cluster) {
			c.Status.Agent.CredentialExpires = &metav1.Time{Time: heard.Time}
		}, want: "uid"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := installed()
			c.Status.Agent.LastSeen = heard
			if row.change != nil {
				row.change(c)
			}
			assert.Equal(t, row.want, registrationID(c, row.requests, heard.Add(time.Hour)))
		})
	}
}

func TestRegistrationKey(t *testing.T) {
	c := installed()
	key := registrationKey(c, "uid")
	assert.Regexp(t, `^[0-9a-f]{12}/0$`, key)

	asked := installed()
	asked.Spec.RedeployAgentGeneration = -1
	keys := map[string]bool{key: true}
	for _, other := range []string{registrationKey(asked, "uid"), registrationKey(c, "other"), registrationKey(c, "uid/r1"), registrationKey(c, "uid/r2")} {
		assert.False(t, keys[other], other)
		keys[other] = true
	}
	assert.Contains(t, registrationKey(asked, "uid"), "/-1")
}

func TestWithEndpointAsCause(t *testing.T) {
	moved := hubInfo{apiServerURL: "https://moved", apiServerCA: []byte("ca")}
	same := hubInfo{apiServerURL: "https://hub", apiServerCA: []byte("ca")}
	for _, row := range []struct {
		name  string
		agent fleet.AgentStatus
		info  hubInfo
		same  bool
	}{
		{"agent with a generation", fleet.AgentStatus{LastSeen: metav1.Now(), Version: "v1", Generation: "x/0"}, moved, true},
		{"agent with its Bundle", fleet.AgentStatus{LastSeen: metav1.Now(), Version: "v1", Generation: "managed/0"}, moved, true},
		{"agent of the chart, without generation", fleet.AgentStatus{LastSeen: metav1.Now(), Version: "v1"}, moved, true},
		{"agent that never checked in", fleet.AgentStatus{}, moved, true},
		{"agent of Fleet", fleet.AgentStatus{LastSeen: metav1.Now()}, moved, false},
		{"agent of Fleet at the same endpoint", fleet.AgentStatus{LastSeen: metav1.Now()}, same, true},
	} {
		c := installed()
		c.Status.APIServerURL, c.Status.APIServerCAHash, c.Status.Agent = same.apiServerURL, registration.CAHash(same.apiServerCA), row.agent
		assert.Equal(t, row.same, withEndpointAsCause(row.info, c, "uid") == "uid", row.name)
	}
}

func TestWithEndpointAsCause_once(t *testing.T) {
	c := installed()
	c.Status.Agent = fleet.AgentStatus{LastSeen: metav1.Now()}
	first := withEndpointAsCause(hubInfo{apiServerURL: "https://moved"}, c, "uid")
	c.Status.APIServerURL, c.Status.APIServerCAHash, c.Status.Import.RegistrationID = "https://moved", registration.CAHash(nil), first
	granted := credentialstatus.Status{Granted: true}
	assert.Equal(t, first, withEndpointAsCause(hubInfo{apiServerURL: "https://moved"}, c, registrationID(c, granted, time.Unix(0, 0))))
	assert.NotEqual(t, first, withEndpointAsCause(hubInfo{apiServerURL: "https://again"}, c, registrationID(c, granted, time.Unix(0, 0))))
	assert.False(t, credentialInvalid(c.Status.Import, registrationID(c, granted, time.Unix(0, 0))), "it requires no other import")
}
