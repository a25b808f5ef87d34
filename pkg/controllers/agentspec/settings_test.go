package agentspec

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestSettingsRecord(t *testing.T) {
	yes, no := true, false
	for name, spec := range map[string]fleet.ClusterSpec{
		"environment":  {AgentEnvVars: []corev1.EnvVar{{Name: "A", Value: "1"}}},
		"affinity":     {AgentAffinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}},
		"resources":    {AgentResources: &corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "a"}}}},
		"tolerations":  {AgentTolerations: []corev1.Toleration{{Key: "a"}}},
		"scheduling":   {AgentSchedulingCustomization: &fleet.AgentSchedulingCustomization{PriorityClass: &fleet.PriorityClassSpec{Value: 1}}},
		"registry":     {PrivateRepoURL: "registry.example"},
		"host network": {HostNetwork: &yes},
	} {
		t.Run(name, func(t *testing.T) {
			var status fleet.ClusterStatus
			assert.NotEqual(t, WantedSettings(spec), InstalledSettings(status), "new")
			WantedSettings(spec).Record(&status)
			assert.Equal(t, WantedSettings(spec), InstalledSettings(status), "installed")
			assert.NotEqual(t, WantedSettings(fleet.ClusterSpec{HostNetwork: &no}), InstalledSettings(status), "removed")
		})
	}
}

func TestEmptySettings(t *testing.T) {
	no := false
	empty := fleet.ClusterSpec{
		AgentEnvVars: []corev1.EnvVar{}, AgentTolerations: []corev1.Toleration{}, AgentAffinity: &corev1.Affinity{},
		AgentResources: &corev1.ResourceRequirements{}, AgentSchedulingCustomization: &fleet.AgentSchedulingCustomization{}, HostNetwork: &no,
	}
	for name, status := range map[string]fleet.ClusterStatus{
		"never imported":              {},
		"imported by Fleet's hub":     {AgentEnvVarsHash: "a7408a8b23aff882d8b95165eb24c3a6b519468539eb2b3072f529cb"},
		"imported with an empty list": {AgentEnvVarsHash: emptyListHash},
	} {
		assert.Equal(t, WantedSettings(fleet.ClusterSpec{}), InstalledSettings(status), name)
		assert.Equal(t, WantedSettings(empty), InstalledSettings(status), name)
	}
}

func TestRecordOfUnsetEnvironmentVariables(t *testing.T) {
	var status fleet.ClusterStatus
	WantedSettings(fleet.ClusterSpec{}).Record(&status)
	assert.Equal(t, fleet.ClusterStatus{AgentEnvVarsHash: "a7408a8b23aff882d8b95165eb24c3a6b519468539eb2b3072f529cb"}, status)
}

func TestCheckSize(t *testing.T) {
	tolerations := func(n int) fleet.ClusterSpec {
		return fleet.ClusterSpec{AgentTolerations: make([]corev1.Toleration, n)}
	}
	most := (maxSettings - 1) / 3 // "[{},{}]"
	assert.NoError(t, CheckSize(fleet.ClusterSpec{}))
	assert.NoError(t, CheckSize(tolerations(most)))
	require.EqualError(t, CheckSize(tolerations(most+1)),
		"the settings of the agent in the spec have 65539 bytes as JSON, 65539 of them in spec.agentTolerations; at most 65536 are accepted")
	require.ErrorContains(t, CheckSize(fleet.ClusterSpec{SettingsTooLarge: true}), "take more than 256 KiB of memory")
	require.ErrorContains(t, CheckSize(fleet.ClusterSpec{MetadataTooLarge: true}), "metadata.labels takes more than 32 KiB")
	large := strings.Repeat("x", maxSettings)
	for field, spec := range map[string]fleet.ClusterSpec{
		"agentEnvVars":                 {AgentEnvVars: []corev1.EnvVar{{Name: large}}},
		"agentAffinity":                {AgentAffinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: large}}}}},
		"agentResources":               {AgentResources: &corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: large}}}},
		"agentSchedulingCustomization": {AgentSchedulingCustomization: &fleet.AgentSchedulingCustomization{PodDisruptionBudget: &fleet.PodDisruptionBudgetSpec{MinAvailable: large}}},
		"agentPullSecrets":             {AgentPullSecrets: &[]corev1.LocalObjectReference{{Name: large}}},
		"agentNamespace":               {AgentNamespace: large},
		"privateRepoURL":               {PrivateRepoURL: large},
	} {
		spec.AgentEnvVars = append(spec.AgentEnvVars, corev1.EnvVar{Name: "a"})
		require.ErrorContains(t, CheckSize(spec), "of them in spec."+field)
	}
}
