package agentspec

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
)

func TestWhyAnAgentHasNoBundle(t *testing.T) {
	local := config.Bootstrap{Namespace: "fleet-local", LocalAgentDisabled: true}
	for _, row := range []struct {
		name            string
		hub             config.Hub
		namespace, call string
		label           string
		reason          string
	}{
		{name: "it has one"},
		{name: "it has one, said aloud", hub: config.Hub{ManageAgent: ptr.To(true)}},
		{name: "the configuration", hub: config.Hub{ManageAgent: ptr.To(false)}, reason: fleet.ReasonAgentNotManaged},
		{name: "a label, whatever its value", label: fleet.NonManagedAgentLabel, reason: fleet.ReasonAgentNotManaged},
		{name: "another controller", label: fleet.ClusterManagementLabel, reason: ""},
		{name: "the hub's own cluster", hub: config.Hub{Bootstrap: local}, namespace: "fleet-local", call: "local", reason: fleet.ReasonLocalAgentDisabled},
		{name: "one that is only named so", hub: config.Hub{Bootstrap: local}, namespace: "other", call: "local"},
	} {
		c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: row.namespace, Name: row.call}}
		if row.label != "" {
			c.Labels = map[string]string{row.label: ""}
		}
		reason, message := Unmanaged(row.hub, c)
		assert.Equal(t, row.reason, reason, row.name)
		assert.Equal(t, row.reason == "", message == "", row.name)
	}
	reason, _ := Unmanaged(config.Hub{}, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{fleet.ClusterManagementLabel: "x"}}})
	assert.Equal(t, fleet.ReasonManagedElsewhere, reason)
}

func TestWhoGetsItsSettingsFromItsBundle(t *testing.T) {
	for _, row := range []struct {
		name       string
		generation string
		connected  corev1.ConditionStatus
		manage     *bool
		want       bool
	}{
		{"an agent that took it over", "managed/0", corev1.ConditionTrue, nil, true},
		{"one of which nobody knows yet whether it is there", "managed/0", corev1.ConditionUnknown, nil, true},
		{"one that is silent", "managed/0", corev1.ConditionFalse, nil, false},
		{"one as an import left it", "0123/0", corev1.ConditionTrue, nil, false},
		{"one of another release", "", corev1.ConditionTrue, nil, false},
		{"one that has no Bundle", "managed/0", corev1.ConditionTrue, ptr.To(false), false},
	} {
		c := &fleet.Cluster{Status: fleet.ClusterStatus{
			Agent:      fleet.AgentStatus{Generation: row.generation},
			Conditions: []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: row.connected}},
		}}
		assert.Equal(t, row.want, ServedByBundle(config.Hub{ManageAgent: row.manage}, c), row.name)
	}
}

func TestWithWhichGenerationAnImportInstalls(t *testing.T) {
	heard := metav1.Now()
	for _, row := range []struct {
		name  string
		agent fleet.AgentStatus
		last  *fleet.ImportStatus
		hub   config.Hub
		want  string
	}{
		{"a first import", fleet.AgentStatus{}, nil, config.Hub{}, "key"},
		{"an agent with its Bundle", fleet.AgentStatus{LastSeen: heard, Generation: "managed/2"}, nil, config.Hub{}, "managed/3"},
		{"one that was not heard of since it was installed so", fleet.AgentStatus{}, &fleet.ImportStatus{Generation: "managed/2"}, config.Hub{}, "managed/3"},
		{"one that says otherwise", fleet.AgentStatus{LastSeen: heard, Generation: "key"}, &fleet.ImportStatus{Generation: "managed/2"}, config.Hub{}, "key"},
		{"one of another release", fleet.AgentStatus{LastSeen: heard}, &fleet.ImportStatus{Generation: "key"}, config.Hub{}, "key"},
		{"one without Bundle", fleet.AgentStatus{LastSeen: heard, Generation: "managed/2"}, nil, config.Hub{ManageAgent: ptr.To(false)}, "key"},
	} {
		c := &fleet.Cluster{Spec: fleet.ClusterSpec{RedeployAgentGeneration: 3}, Status: fleet.ClusterStatus{Agent: row.agent, Import: row.last}}
		assert.Equal(t, row.want, InstalledGeneration(row.hub, c, "key"), row.name)
	}
}

func TestManifestHashIsOfAllButTheGeneration(t *testing.T) {
	env := func(generation, value string) []corev1.EnvVar {
		return []corev1.EnvVar{{Name: "GENERATION", Value: generation}, {Name: "A", Value: value}}
	}
	hash := ManifestHash(agentmanifest.Options{Image: "i", EnvVars: env("1", "a")})
	assert.Equal(t, hash, ManifestHash(agentmanifest.Options{Image: "i", EnvVars: env("2", "a")}))
	assert.NotEqual(t, hash, ManifestHash(agentmanifest.Options{Image: "i", EnvVars: env("1", "b")}))
	assert.NotEqual(t, hash, ManifestHash(agentmanifest.Options{Image: "j", EnvVars: env("1", "a")}))
}

func TestWhatAnAgentIsToldOfItsHub(t *testing.T) {
	told, err := HubConfigMap(config.Hub{APIServerURL: "https://hub", APIServerCA: certificate(t)}, "ns")
	require.NoError(t, err)
	assert.Equal(t, "fleet-agent-hub", told.Name)
	assert.Equal(t, "ns", told.Namespace)
	assert.Equal(t, map[string]string{
		"apiServerURL": "https://hub", "apiServerCA": told.Data["apiServerCA"], "agentTLSMode": "system-store",
	}, told.Data)

	told, err = HubConfigMap(config.Hub{APIServerURL: "https://hub", AgentTLSMode: config.TLSModeStrict}, "ns")
	require.NoError(t, err)
	assert.Empty(t, told.Data["apiServerCA"], "a CA the system knows")
	assert.Equal(t, "strict", told.Data["agentTLSMode"])

	for _, bad := range [][]byte{[]byte("garbage"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})} {
		_, err = HubConfigMap(config.Hub{APIServerURL: "https://hub", APIServerCA: bad}, "ns")
		require.ErrorIs(t, err, ErrBadCA)
	}
}

// certificate is one of nobody.
func certificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, &key.PublicKey, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
