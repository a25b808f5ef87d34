package charts_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
)

const monitoringTemplate = "fleet/templates/monitoring.yaml"

func TestDashboardIsOffByDefault(t *testing.T) {
	rendered, err := charts.Render(charts.Hub, release(charts.Hub), withNeeds(t, charts.Hub, "{}"))
	require.NoError(t, err)
	assert.NotContains(t, join(rendered), "monitoring.coreos.com")
	assert.NotContains(t, join(rendered), "fleet-controller-dashboard")
}

func TestDashboardIsTheFile(t *testing.T) {
	file, err := charts.Files.ReadFile("fleet/files/dashboard.json")
	require.NoError(t, err)
	for values, labels := range map[string]map[string]string{
		"metrics: {dashboard: {enabled: true}}":                                 {"app": "fleet-controller", "grafana_dashboard": "1"},
		"metrics: {enabled: false, dashboard: {enabled: true, labels: {a: b}}}": {"app": "fleet-controller", "a": "b"},
	} {
		rendered, err := charts.Render(charts.Hub, release(charts.Hub), withNeeds(t, charts.Hub, values))
		require.NoError(t, err)
		var dashboard corev1.ConfigMap
		require.NoError(t, yaml.Unmarshal([]byte(rendered[monitoringTemplate]), &dashboard))
		maps.DeleteFunc(dashboard.Labels, func(key, _ string) bool { return strings.Contains(key, "/") }) // those that all objects have
		assert.Equal(t, labels, dashboard.Labels)
		assert.JSONEq(t, string(file), dashboard.Data["muster-hub.json"])
	}
}
