package charts_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
)

// A case is a change of values, in the form each of the two charts takes it.
func renderPair(t *testing.T, hub, agent string) map[string]map[string]string {
	t.Helper()
	rendered, err := charts.Render(charts.Agent, release(charts.Agent), agentValues(t, agent))
	require.NoError(t, err)
	return map[string]map[string]string{charts.Hub: renderHub(t, hub), charts.Agent: rendered}
}

func deploymentOf(t *testing.T, chart string, rendered map[string]string) appsv1.Deployment {
	t.Helper()
	var deployment appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict([]byte(rendered[chart+"/templates/deployment.yaml"]), &deployment))
	return deployment
}

func budgetOf(t *testing.T, chart string, rendered map[string]string) *policyv1.PodDisruptionBudget {
	t.Helper()
	manifest, made := rendered[chart+"/templates/poddisruptionbudget.yaml"]
	if !made {
		return nil
	}
	var budget policyv1.PodDisruptionBudget
	require.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &budget))
	return &budget
}

func TestPodsAreAsConfinedAsTheyCanBe(t *testing.T) {
	for chart, rendered := range renderPair(t, "{}", "{}") {
		pod := deploymentOf(t, chart, rendered).Spec.Template.Spec
		assert.True(t, *pod.SecurityContext.RunAsNonRoot, chart)
		assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type, chart)
		container := pod.Containers[0].SecurityContext
		assert.False(t, *container.AllowPrivilegeEscalation, chart)
		assert.True(t, *container.ReadOnlyRootFilesystem, chart)
		assert.Equal(t, []corev1.Capability{"ALL"}, container.Capabilities.Drop, chart)
		assert.False(t, pod.HostNetwork, chart)
	}
	for chart, rendered := range renderPair(t, "disableSecurityContext: true", "disableSecurityContext: true") {
		pod := deploymentOf(t, chart, rendered).Spec.Template.Spec
		assert.Nil(t, pod.SecurityContext, chart)
		assert.Nil(t, pod.Containers[0].SecurityContext, chart)
	}
}

func TestTheKubeletIsAnsweredWhereItAsks(t *testing.T) {
	for chart, rendered := range renderPair(t, "probes: {liveness: {periodSeconds: 60}}", "fleetAgent: {probes: {liveness: {periodSeconds: 60}}}") {
		container := deploymentOf(t, chart, rendered).Spec.Template.Spec.Containers[0]
		assert.Equal(t, "/healthz", container.LivenessProbe.HTTPGet.Path, chart)
		assert.EqualValues(t, 60, container.LivenessProbe.PeriodSeconds, chart)
		assert.EqualValues(t, 6, container.LivenessProbe.FailureThreshold, "%s: the other defaults stay", chart)
		assert.Equal(t, "/readyz", container.ReadinessProbe.HTTPGet.Path, chart)
		port := portNamed(t, container, container.LivenessProbe.HTTPGet.Port.StrVal)
		assert.EqualValues(t, 8081, port, chart)
		assert.Equal(t, ":8081", variable(container, "FLEET_HEALTH_BIND_ADDRESS"), chart)
	}
}

func portNamed(t *testing.T, container corev1.Container, name string) int32 {
	t.Helper()
	i := slices.IndexFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return container.Ports[i].ContainerPort
}

func variable(container corev1.Container, name string) string {
	i := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == name })
	if i < 0 {
		return ""
	}
	return container.Env[i].Value
}

func TestNobodyAsksWhereNobodyAnswers(t *testing.T) {
	for _, pair := range [][2]string{
		{"probes: {enabled: false}", "fleetAgent: {probes: {enabled: false}}"},
		{"probes: {enabled: false}", "fleetAgent: {hostNetwork: true}"},
	} {
		for chart, rendered := range renderPair(t, pair[0], pair[1]) {
			container := deploymentOf(t, chart, rendered).Spec.Template.Spec.Containers[0]
			assert.Nil(t, container.LivenessProbe, chart)
			assert.Nil(t, container.ReadinessProbe, chart)
			assert.Empty(t, variable(container, "FLEET_HEALTH_BIND_ADDRESS"), chart)
			assert.False(t, slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == "health" }), chart)
		}
	}
}

func TestAgentsOfTheHubHaveProbesUnlessItIsToldOtherwise(t *testing.T) {
	for values, want := range map[string]string{"{}": "", "agent: {probes: null}": "", "agent: {probes: {enabled: false}}": "true"} {
		container := hubDeployment(t, renderHub(t, values)).Spec.Template.Spec.Containers[0]
		assert.Equal(t, want, variable(container, "FLEET_DISABLE_AGENT_PROBES"), values)
	}
}

func TestMetricsHaveAServiceOrNothing(t *testing.T) {
	for values, served := range map[string]bool{"{}": true, "metrics: null": true, "metrics: {enabled: null}": true, "metrics: {enabled: false}": false} {
		rendered := renderHub(t, values)
		container := hubDeployment(t, rendered).Spec.Template.Spec.Containers[0]
		manifest, made := rendered["fleet/templates/service.yaml"]
		assert.Equal(t, served, made, values)
		assert.Equal(t, served, variable(container, "FLEET_METRICS_BIND_ADDRESS") != "", values)
		if !served {
			continue
		}
		var service corev1.Service
		require.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &service))
		assert.Equal(t, hubDeployment(t, rendered).Spec.Selector.MatchLabels, service.Spec.Selector)
		assert.EqualValues(t, 8080, portNamed(t, container, service.Spec.Ports[0].TargetPort.StrVal), "the Service leads where the hub listens")
	}
}

func TestSeveralReplicasAreSpreadAndNotEvictedTogether(t *testing.T) {
	for chart, rendered := range renderPair(t, "controller: {replicas: 2}", "agent: {replicas: 2}") {
		deployment := deploymentOf(t, chart, rendered)
		spread := deployment.Spec.Template.Spec.TopologySpreadConstraints
		require.Len(t, spread, 1, chart)
		assert.Equal(t, corev1.ScheduleAnyway, spread[0].WhenUnsatisfiable, "%s: a cluster may have one node", chart)
		assert.Equal(t, deployment.Spec.Selector, spread[0].LabelSelector, chart)
		budget := budgetOf(t, chart, rendered)
		require.NotNil(t, budget, chart)
		assert.Equal(t, intstr.FromInt32(1), *budget.Spec.MaxUnavailable, chart)
		assert.Nil(t, budget.Spec.MinAvailable, chart)
		assert.Equal(t, deployment.Spec.Selector, budget.Spec.Selector, chart)
	}
	for _, pair := range [][2]string{
		{"{}", "{}"},
		{"controller: {replicas: 0}", "agent: {replicas: 0}"},
		{"controller: null", "agent: null"},
		{"{controller: {replicas: 2, podDisruptionBudget: {enabled: false}}, topologySpreadConstraints: []}", "{agent: {replicas: 2, podDisruptionBudget: {enabled: false}}, fleetAgent: {topologySpreadConstraints: []}}"},
	} {
		for chart, rendered := range renderPair(t, pair[0], pair[1]) {
			assert.Nil(t, budgetOf(t, chart, rendered), "%s %v", chart, pair)
			assert.Empty(t, deploymentOf(t, chart, rendered).Spec.Template.Spec.TopologySpreadConstraints, "%s %v", chart, pair)
		}
	}
}

func TestABudgetHasOneOfItsTwoNumbers(t *testing.T) {
	budget := budgetOf(t, charts.Hub, renderHub(t, "controller: {replicas: 3, podDisruptionBudget: {minAvailable: 50%}}"))
	assert.Equal(t, intstr.FromString("50%"), *budget.Spec.MinAvailable)
	assert.Nil(t, budget.Spec.MaxUnavailable)
}

// The hub takes the agent's Deployment over, with as many replicas as it has settings for, and leaves the budget: one that counts
// those that must be there would then let nobody drain the node of the only one.
func TestTheBudgetOfAnAgentCountsThoseThatMayBeAway(t *testing.T) {
	for values, want := range map[string]intstr.IntOrString{
		"agent: {replicas: 2}": intstr.FromInt32(1),
		"agent: {replicas: 4, podDisruptionBudget: {maxUnavailable: 50%, minAvailable: null}}": intstr.FromString("50%"),
	} {
		rendered, err := charts.Render(charts.Agent, release(charts.Agent), agentValues(t, values))
		require.NoError(t, err)
		budget := budgetOf(t, charts.Agent, rendered)
		assert.Equal(t, want, *budget.Spec.MaxUnavailable, values)
		assert.Nil(t, budget.Spec.MinAvailable, values)
	}
}

func TestAgentsOfTheHubBringNoBudgetOfTheirOwn(t *testing.T) {
	rendered, err := charts.Render(charts.Agent, release(charts.Agent), parseValues(t, "{internal: {managed: true, image: a}, agent: {replicas: 2}}"))
	require.NoError(t, err)
	assert.Nil(t, budgetOf(t, charts.Agent, rendered), "the Cluster asks for it, or nobody")
}

func TestExtraLabelsAndAnnotationsReachThePodsAndNothingElseIsLost(t *testing.T) {
	hub := "{extraLabels: {a: b, num: 7, app: mine, fleetController: {a: mine}, gitjob: {x: y}}, extraAnnotations: {fleetController: {t: true}}}"
	agent := "fleetAgent: {extraLabels: {a: mine, num: 7, app: mine}, extraAnnotations: {t: true}}"
	for chart, rendered := range renderPair(t, hub, agent) {
		deployment := deploymentOf(t, chart, rendered)
		app := deployment.Spec.Selector.MatchLabels["app"]
		want := map[string]string{"app": app, "a": "mine", "num": "7"}
		assert.Equal(t, want, deployment.Labels, chart)
		assert.Equal(t, want, deployment.Spec.Template.Labels, "%s: the selector must still match", chart)
		assert.Equal(t, map[string]string{"t": "true"}, deployment.Annotations, chart)
		assert.Equal(t, map[string]string{"t": "true"}, deployment.Spec.Template.Annotations, chart)
		assert.Len(t, deployment.Spec.Selector.MatchLabels, 1, chart)
	}
}

// With the network of their node two pods have one host name, and their Lease could not tell them apart.
func TestPodsAreToldTheirNameForTheLease(t *testing.T) {
	for chart, rendered := range renderPair(t, "{}", "fleetAgent: {hostNetwork: true}") {
		container := deploymentOf(t, chart, rendered).Spec.Template.Spec.Containers[0]
		i := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "POD_NAME" })
		require.GreaterOrEqual(t, i, 0, chart)
		assert.Equal(t, "metadata.name", container.Env[i].ValueFrom.FieldRef.FieldPath, chart)
	}
}

func TestBundlesAreLeftToOthersWhereThatIsSaid(t *testing.T) {
	for values, want := range map[string]string{"{}": "", "disableBundles: null": "", "disableBundles: true": "true"} {
		container := hubDeployment(t, renderHub(t, values)).Spec.Template.Spec.Containers[0]
		assert.Equal(t, want, variable(container, "FLEET_DISABLE_BUNDLES"), values)
	}
}

// Authorities of one's own, above all: the images have the well-known ones only.
func TestWhatIsMountedBesideReachesThePods(t *testing.T) {
	const more = `extraVolumes: [{name: authorities, configMap: {name: ours}}], extraVolumeMounts: [{name: authorities, mountPath: /etc/pki/tls/certs, readOnly: true}]`
	for chart, rendered := range renderPair(t, "{"+more+"}", "fleetAgent: {"+more+"}") {
		pod := deploymentOf(t, chart, rendered).Spec.Template.Spec
		volume, mount := pod.Volumes[len(pod.Volumes)-1], pod.Containers[0].VolumeMounts[len(pod.Containers[0].VolumeMounts)-1]
		require.NotNil(t, volume.ConfigMap, chart)
		assert.Equal(t, "ours", volume.ConfigMap.Name, chart)
		assert.Equal(t, corev1.VolumeMount{Name: "authorities", MountPath: "/etc/pki/tls/certs", ReadOnly: true}, mount, chart)
		assert.True(t, slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "tmp" }), "%s: its own are still there", chart)
	}
}
