package charts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/pkg/config"
)

func configDocument(t *testing.T, chart, values string) string {
	t.Helper()
	return configWith(t, chart, readValues(t, "testdata/"+chart+"/"+values+".values.yaml"))
}

func configWith(t *testing.T, chart string, values map[string]any) string {
	t.Helper()
	rendered, err := charts.Render(chart, release(chart), values)
	require.NoError(t, err)
	var configMap corev1.ConfigMap
	require.NoError(t, yaml.UnmarshalStrict([]byte(rendered[chart+"/templates/configmap.yaml"]), &configMap))
	return configMap.Data["config"]
}

func TestHubReadsTheConfigOfItsChart(t *testing.T) {
	for _, values := range []string{"default", "rancher", "full"} {
		_, warnings, err := config.ParseHub(configDocument(t, charts.Hub, values))
		require.NoError(t, err, values)
		assert.Empty(t, warnings, values)
	}

	hub, _, err := config.ParseHub(configDocument(t, charts.Hub, "full"))
	require.NoError(t, err)
	assert.Equal(t, "registry.example.com/mirror/fleet-agent:v1.2.3@sha256:"+strings.Repeat("0123456789abcdef", 4), hub.AgentImage)
	assert.Equal(t, config.TLSModeStrict, hub.TLSMode())
	assert.Equal(t, map[string]string{"env": "prod", "build": "1000000", "gpu": "true"}, hub.Bootstrap.ClusterLabels)
	assert.Equal(t, []string{"pull"}, hub.PullSecretNames())
	assert.Equal(t, "7", hub.AgentWorkers.BundleDeployment)
	assert.Zero(t, hub.AgentCheckinInterval.Duration)
	assert.True(t, hub.CopiesPullSecretsTo("prod"))
	assert.False(t, hub.CopiesPullSecretsTo("test"))
	assert.Len(t, hub.Members.DeniedCIDRs, 2)
	assert.Len(t, hub.Members.AllowedCIDRs, 1)
	assert.True(t, hub.Members.AllowProxyURL)

	hub, _, err = config.ParseHub(configDocument(t, charts.Hub, "rancher"))
	require.NoError(t, err)
	assert.Equal(t, "https://rancher.example.com", hub.APIServerURL)
	assert.Equal(t, certificate[:len(certificate)-1], string(hub.APIServerCA))
	assert.Equal(t, "cattle-fleet-local-system", hub.Bootstrap.AgentNamespace)
	assert.Zero(t, hub.AgentCheckinInterval.Duration, "the default of the agents: a minute with a Lease")
}

func TestHubConfig_workspaceMemory(t *testing.T) {
	for value, limit := range map[any]int64{nil: config.DefaultWorkspaceMemoryMiB << 20, 0: config.NoMemoryLimit, 7: 7 << 20} {
		hub, _, err := config.ParseHub(configWith(t, charts.Hub, map[string]any{"bundles": map[string]any{"workspaceMemoryMiB": value}}))
		require.NoError(t, err)
		assert.Equal(t, limit, hub.Bundles.WorkspaceMemory(), "%v", value)
	}
}

func TestAgentReadsTheConfigOfItsChart(t *testing.T) {
	agent, err := config.ParseAgent(configDocument(t, charts.Agent, "full"))
	require.NoError(t, err)
	assert.Equal(t, "hard-to-guess", agent.ClientID)
	assert.Equal(t, config.TLSModeStrict, agent.AgentTLSMode)
	assert.Equal(t, time.Hour, agent.GarbageCollectionInterval.Duration)
	assert.Equal(t, map[string]string{"env": "prod", "build": "1000000", "gpu": "true", "empty": ""}, agent.Labels)
}
