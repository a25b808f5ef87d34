package charts_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
)

func deploymentOf(t *testing.T, chart string, rendered map[string]string) appsv1.Deployment {
	t.Helper()
	var deployment appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict([]byte(rendered[chart+"/templates/deployment.yaml"]), &deployment))
	require.Len(t, deployment.Spec.Template.Spec.Containers, 1)
	return deployment
}

func hubDeployment(t *testing.T, rendered map[string]string) appsv1.Deployment {
	t.Helper()
	return deploymentOf(t, charts.Hub, rendered)
}

func variable(container corev1.Container, name string) string {
	i := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == name })
	if i < 0 {
		return ""
	}
	return container.Env[i].Value
}

// The golden files show every setting of the pods. TestPods checks the names that must agree, and the settings that must remain with all values
// files.
func TestPods(t *testing.T) {
	forEachValuesFile(t, func(t *testing.T, chart, file string) {
		if chart == charts.CRD {
			return
		}
		rendered, err := charts.Render(chart, release(chart), readValues(t, file))
		require.NoError(t, err)
		deployment := deploymentOf(t, chart, rendered)
		selector, pod := deployment.Spec.Selector.MatchLabels, deployment.Spec.Template
		container := pod.Spec.Containers[0]
		assert.Len(t, selector, 1)
		assert.Subset(t, pod.Labels, selector)
		ports := map[string]int32{}
		for _, port := range container.Ports {
			ports[port.Name] = port.ContainerPort
		}
		if container.LivenessProbe != nil {
			assert.Equal(t, ":8081", variable(container, "FLEET_HEALTH_BIND_ADDRESS"))
			assert.EqualValues(t, 8081, ports[container.LivenessProbe.HTTPGet.Port.StrVal])
			assert.EqualValues(t, 8081, ports[container.ReadinessProbe.HTTPGet.Port.StrVal])
		} else {
			assert.Empty(t, variable(container, "FLEET_HEALTH_BIND_ADDRESS"))
		}
		if manifest, exists := rendered[chart+"/templates/service.yaml"]; exists {
			var service corev1.Service
			require.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &service))
			assert.Equal(t, selector, service.Spec.Selector)
			assert.EqualValues(t, 8080, ports[service.Spec.Ports[0].TargetPort.StrVal])
		}
		if manifest, exists := rendered[chart+"/templates/poddisruptionbudget.yaml"]; exists {
			var budget policyv1.PodDisruptionBudget
			require.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &budget))
			assert.Equal(t, selector, budget.Spec.Selector.MatchLabels)
			assert.NotEqual(t, budget.Spec.MinAvailable == nil, budget.Spec.MaxUnavailable == nil, "exactly one of the two")
		}
		if pod.Spec.SecurityContext != nil { // the rest is required by the restricted standard: see TestPodsKeepToTheRestrictedStandard
			assert.True(t, *container.SecurityContext.ReadOnlyRootFilesystem)
		}
	})
}
