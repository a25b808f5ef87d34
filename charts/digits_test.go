package charts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/charts"
)

// Numbers in the values of a release that is upgraded are float64: Helm keeps them as JSON.
func TestTagOfDigitsAfterAnUpgradeThatReusesTheValues(t *testing.T) {
	for given, tag := range map[string]any{"text": "20261122", "the command line's": int64(20261122), "a stored release's": float64(20261122)} {
		values := map[string]any{"image": map[string]any{"tag": tag}, "agentImage": map[string]any{"tag": tag}}
		rendered, err := charts.Render(charts.Hub, release(charts.Hub), values)
		require.NoError(t, err)
		assert.Equal(t, "muster-fleet/fleet:20261122", deploymentOf(t, charts.Hub, rendered).Spec.Template.Spec.Containers[0].Image, given)
		assert.Contains(t, rendered["fleet/templates/configmap.yaml"], `fleet.cattle.io/version: "20261122"`, given)
		assert.Equal(t, "muster-fleet/fleet-agent:20261122", configOf(t, rendered["fleet/templates/configmap.yaml"])["agentImage"], given)

		ofAgent := agentValues(t, "{}")
		ofAgent["image"] = map[string]any{"tag": tag}
		rendered, err = charts.Render(charts.Agent, release(charts.Agent), ofAgent)
		require.NoError(t, err)
		assert.Equal(t, "muster-fleet/fleet-agent:20261122", deploymentOf(t, charts.Agent, rendered).Spec.Template.Spec.Containers[0].Image, given)
	}
}

// YAML reads a name that consists of digits as a number, which Kubernetes refuses.
func TestNamesOfDigits(t *testing.T) {
	for _, chart := range []string{charts.Hub, charts.Agent} {
		values := readValues(t, "testdata/"+chart+"/digits.values.yaml")
		values["internal"] = map[string]any{"systemNamespace": "1234"}
		rendered, err := charts.Render(chart, charts.Release{Name: chart, Namespace: "1234"}, values)
		require.NoError(t, err)
		assert.Equal(t, "1234", deploymentOf(t, chart, rendered).Namespace)
		assert.Equal(t, "7", deploymentOf(t, chart, rendered).Spec.Template.Spec.PriorityClassName)
	}
}
