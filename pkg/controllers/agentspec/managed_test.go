package agentspec

import (
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/pki"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
)

func TestUnmanaged(t *testing.T) {
	local := config.Bootstrap{Namespace: "fleet-local", LocalAgentDisabled: true}
	for _, row := range []struct {
		name            string
		hub             config.Hub
		namespace, call string
		label           string
		reason          string
	}{
		{name: "managed by default"},
		{name: "managed explicitly", hub: config.Hub{ManageAgent: ptr.To(true)}},
		{name: "the configuration", hub: config.Hub{ManageAgent: ptr.To(false)}, reason: fleet.ReasonAgentNotManaged},
		{name: "a label with any value", label: fleet.NonManagedAgentLabel, reason: fleet.ReasonAgentNotManaged},
		{name: "an empty label of another controller", label: fleet.ClusterManagementLabel, reason: ""},
		{name: "the hub's own cluster", hub: config.Hub{Bootstrap: local}, namespace: "fleet-local", call: "local", reason: fleet.ReasonLocalAgentDisabled},
		{name: "a Cluster of the same name in another namespace", hub: config.Hub{Bootstrap: local}, namespace: "other", call: "local"},
	} {
		c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: row.namespace, Name: row.call}}
		if row.label != "" {
			c.Labels = map[string]string{row.label: ""}
		}
		reason, message := WhyUnmanaged(row.hub, c)
		assert.Equal(t, row.reason, reason, row.name)
		assert.Equal(t, row.reason == "", message == "", row.name)
	}
	reason, _ := WhyUnmanaged(config.Hub{}, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{fleet.ClusterManagementLabel: "x"}}})
	assert.Equal(t, fleet.ReasonManagedElsewhere, reason)
}

func TestServedByBundle(t *testing.T) {
	for _, row := range []struct {
		name       string
		generation string
		connected  corev1.ConditionStatus
		manage     *bool
		want       bool
	}{
		{"deployed its Bundle", "managed/0", corev1.ConditionTrue, nil, true},
		{"no heartbeat yet", "managed/0", corev1.ConditionUnknown, nil, true},
		{"disconnected", "managed/0", corev1.ConditionFalse, nil, false},
		{"installed by an import", "0123/0", corev1.ConditionTrue, nil, false},
		{"Fleet's agent", "", corev1.ConditionTrue, nil, false},
		{"no Bundle", "managed/0", corev1.ConditionTrue, ptr.To(false), false},
	} {
		c := &fleet.Cluster{Status: fleet.ClusterStatus{
			Agent:      fleet.AgentStatus{Generation: row.generation},
			Conditions: []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: row.connected}},
		}}
		assert.Equal(t, row.want, ServedByBundle(config.Hub{ManageAgent: row.manage}, c), row.name)
	}
}

func TestInstalledGeneration(t *testing.T) {
	heard := metav1.Now()
	for _, row := range []struct {
		name  string
		agent fleet.AgentStatus
		last  *fleet.ImportStatus
		hub   config.Hub
		want  string
	}{
		{"first import", fleet.AgentStatus{}, nil, config.Hub{}, "key"},
		{"deployed its Bundle", fleet.AgentStatus{LastSeen: heard, Generation: "managed/2"}, nil, config.Hub{}, "managed/3"},
		{"no heartbeat since it was installed with the Bundle's", fleet.AgentStatus{}, &fleet.ImportStatus{Generation: "managed/2"}, config.Hub{}, "managed/3"},
		{"reports another one", fleet.AgentStatus{LastSeen: heard, Generation: "key"}, &fleet.ImportStatus{Generation: "managed/2"}, config.Hub{}, "key"},
		{"Fleet's agent", fleet.AgentStatus{LastSeen: heard}, &fleet.ImportStatus{Generation: "key"}, config.Hub{}, "key"},
		{"no Bundle", fleet.AgentStatus{LastSeen: heard, Generation: "managed/2"}, nil, config.Hub{ManageAgent: ptr.To(false)}, "key"},
	} {
		c := &fleet.Cluster{Spec: fleet.ClusterSpec{RedeployAgentGeneration: 3}, Status: fleet.ClusterStatus{Agent: row.agent, Import: row.last}}
		assert.Equal(t, row.want, InstalledGeneration(row.hub, c, "key"), row.name)
	}
}

func TestManifestHash(t *testing.T) {
	env := func(generation, value string) []corev1.EnvVar {
		return []corev1.EnvVar{{Name: "GENERATION", Value: generation}, {Name: "A", Value: value}}
	}
	hash := ManifestHash(agentmanifest.Options{Image: "i", EnvVars: env("1", "a")})
	assert.Equal(t, hash, ManifestHash(agentmanifest.Options{Image: "i", EnvVars: env("2", "a")}))
	assert.Equal(t, hash, ManifestHash(agentmanifest.Options{Image: "i", EnvVars: env("1", "a"), CredentialLifetime: time.Hour}))
	assert.NotEqual(t, hash, ManifestHash(agentmanifest.Options{Image: "i", EnvVars: env("1", "b")}))
	assert.NotEqual(t, hash, ManifestHash(agentmanifest.Options{Image: "j", EnvVars: env("1", "a")}))
}

func TestAgentHubConfigMap(t *testing.T) {
	made, err := AgentHubConfigMap(config.Hub{APIServerURL: "https://hub", APIServerCA: certificate(t)}, "ns")
	require.NoError(t, err)
	assert.Equal(t, "fleet-agent-hub", made.Name)
	assert.Equal(t, "ns", made.Namespace)
	assert.Equal(t, map[string]string{
		"apiServerURL": "https://hub", "apiServerCA": made.Data["apiServerCA"], "agentTLSMode": "system-store",
	}, made.Data)

	made, err = AgentHubConfigMap(config.Hub{APIServerURL: "https://hub", AgentTLSMode: config.TLSModeStrict}, "ns")
	require.NoError(t, err)
	assert.Empty(t, made.Data["apiServerCA"], "the system knows the CA")
	assert.Equal(t, "strict", made.Data["agentTLSMode"])

	block, _ := pem.Decode(certificate(t))
	withHeaders := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: block.Bytes})
	for name, row := range map[string]struct {
		ca  []byte
		bad bool
	}{
		"several blocks, the first one no certificate": {append(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte("x")}), certificate(t)...), false},
		"with headers, which agents skip":              {withHeaders, true},
		"no PEM":                                       {[]byte("garbage"), true},
		"no certificate in it":                         {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), true},
	} {
		made, err := AgentHubConfigMap(config.Hub{APIServerURL: "https://hub", APIServerCA: row.ca}, "ns")
		assert.Equal(t, row.bad, errors.Is(err, ErrBadCA), "%s: %v", name, err)
		assert.Equal(t, row.bad, !hubclient.ValidCA(row.ca), "%s: the agent's answer", name)
		assert.Equal(t, row.bad, made == nil, name)
	}
}

// certificate returns a certificate.
func certificate(t *testing.T) []byte {
	t.Helper()
	authority, err := pki.NewAuthority("", time.Now())
	require.NoError(t, err)
	return authority.Pair.Cert
}
