package agentmanifest_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/leader"
)

// plain returns the options of a hub with the chart's defaults for a Cluster without settings.
func plain() agentmanifest.Options {
	return agentmanifest.Options{
		Namespace:               "cattle-fleet-system",
		Image:                   "muster-fleet/fleet-agent:v1",
		ImagePullPolicy:         "IfNotPresent",
		Replicas:                1,
		CheckinInterval:         15 * time.Minute,
		BundleDeploymentWorkers: "50",
		DriftWorkers:            "50",
		LeaderElection: leader.Times{
			LeaseDuration: 30 * time.Second, RenewDeadline: 25 * time.Second, RetryPeriod: 10 * time.Second,
		},
	}
}

// full uses every option.
func full() agentmanifest.Options {
	seconds := int64(6_000_000)
	o := plain()
	o.Namespace = "cattle-fleet-local-system"
	o.Scope = "cattle-fleet-local-system"
	o.CredentialLifetime = 7 * 24 * time.Hour
	o.SystemDefaultRegistry = "registry.example.com"
	o.Image = "registry.example.com/muster-fleet/fleet-agent:v1"
	o.PrivateRepoURL = "private.example.com:5000/mirror"
	o.ImagePullSecrets = []string{"pull-b", "pull-a"}
	o.Replicas = 3
	o.EnvVars = []corev1.EnvVar{
		{Name: "ZONE", Value: `"quoted": {{ not a template }} # no comment`},
		{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		{Name: "CHECKIN_INTERVAL", Value: "1m"},
	}
	o.Tolerations = []corev1.Toleration{
		{Key: "b", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
		{Key: "a", Operator: corev1.TolerationOpEqual, Value: "true"},
	}
	o.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
	o.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1.5Gi")}}
	o.HostNetwork = true
	o.PriorityClassName = agentmanifest.PriorityClassName
	o.Debug = true
	o.DebugLevel = 5
	return o
}

func TestRender(t *testing.T) {
	bare := agentmanifest.Options{Namespace: "agents", Image: "agent:v1", DisableSecurityContext: true}
	for name, options := range map[string]agentmanifest.Options{"plain": plain(), "full": full(), "bare": bare} {
		t.Run(name, func(t *testing.T) {
			objects, err := agentmanifest.Render(options)
			require.NoError(t, err)
			golden.Equal(t, "testdata/"+name+".golden.yaml", toYAML(t, objects))
		})
	}
}

func toYAML(t *testing.T, objects []runtime.Object) string {
	t.Helper()
	var all strings.Builder
	for _, object := range objects {
		data, err := yaml.Marshal(object)
		require.NoError(t, err)
		all.WriteString("---\n")
		all.Write(data)
	}
	return all.String()
}

func TestRender_probes(t *testing.T) {
	for title, change := range map[string]func(*agentmanifest.Options){
		"another image": func(o *agentmanifest.Options) { o.DisableProbes = true },
		"host network":  func(o *agentmanifest.Options) { o.HostNetwork = true },
	} {
		options := plain()
		assert.NotNil(t, deployment(t, options).Spec.Template.Spec.Containers[0].ReadinessProbe)
		change(&options)
		container := deployment(t, options).Spec.Template.Spec.Containers[0]
		assert.Nil(t, container.LivenessProbe, title)
		assert.Nil(t, container.ReadinessProbe, title)
		assert.Empty(t, container.Ports, title)
	}
}

func TestRender_emptyAffinity(t *testing.T) {
	options := plain()
	assert.NotNil(t, deployment(t, options).Spec.Template.Spec.Affinity.NodeAffinity)
	options.Affinity = &corev1.Affinity{}
	assert.Equal(t, &corev1.Affinity{}, deployment(t, options).Spec.Template.Spec.Affinity)
}

func deployment(t *testing.T, options agentmanifest.Options) *appsv1.Deployment {
	t.Helper()
	objects, err := agentmanifest.Render(options)
	require.NoError(t, err)
	for _, object := range objects {
		if deployment, ok := object.(*appsv1.Deployment); ok {
			return deployment
		}
	}
	require.Fail(t, "no Deployment")
	return nil
}

func TestRender_errors(t *testing.T) {
	tests := map[string]struct {
		change func(*agentmanifest.Options)
		says   string
	}{
		"no namespace":           {func(o *agentmanifest.Options) { o.Namespace = "" }, "namespace is empty"},
		"no image":               {func(o *agentmanifest.Options) { o.Image = "" }, "set agentImage in the hub's ConfigMap fleet-controller"},
		"negative replicas":      {func(o *agentmanifest.Options) { o.Replicas = -1 }, "-1 replicas"},
		"workers are not digits": {func(o *agentmanifest.Options) { o.DriftWorkers = "many" }, "drift"},
		"unknown pull policy":    {func(o *agentmanifest.Options) { o.ImagePullPolicy = "Sometimes" }, "imagePullPolicy"},
		"negative debug level":   {func(o *agentmanifest.Options) { o.DebugLevel = -1 }, "debugLevel"},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			options := plain()
			tt.change(&options)
			objects, err := agentmanifest.Render(options)
			assert.ErrorContains(t, err, tt.says)
			assert.Empty(t, objects)
		})
	}
}

func TestRender_repeatable(t *testing.T) {
	options := full()
	first, err := agentmanifest.Render(options)
	require.NoError(t, err)
	assert.Equal(t, full(), options, "the options may belong to an informer's cache")

	options.Tolerations[0], options.Tolerations[1] = options.Tolerations[1], options.Tolerations[0]
	second, err := agentmanifest.Render(options)
	require.NoError(t, err)
	assert.Equal(t, first, second, "the order of tolerations must not count")

	// The caller may change the objects.
	second[0].(*rbacv1.ClusterRole).Labels = map[string]string{"mine": "true"}
	second[4].(*appsv1.Deployment).Spec.Template.Spec.Tolerations[2].Key = "changed"
	third, err := agentmanifest.Render(options)
	require.NoError(t, err)
	assert.Equal(t, first, third)
	assert.Equal(t, "a", options.Tolerations[0].Key)
}

func TestRender_concurrent(t *testing.T) {
	want, err := agentmanifest.Render(full())
	require.NoError(t, err)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			got, err := agentmanifest.Render(full())
			assert.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	group.Wait()
}

func TestClusterRoleName(t *testing.T) {
	assert.Equal(t, "cattle-fleet-system-fleet-agent-role", agentmanifest.ClusterRoleName("cattle-fleet-system"))
	assert.Equal(t, "cattle-fleet-system-fleet-agent-role-binding", agentmanifest.ClusterRoleBindingName("cattle-fleet-system"))
	long := strings.Repeat("a", 63)
	assert.Len(t, agentmanifest.ClusterRoleName(long), 63)
	assert.NotEqual(t, agentmanifest.ClusterRoleName(long), agentmanifest.ClusterRoleBindingName(long))
	assert.NotEqual(t, agentmanifest.ClusterRoleName(long), agentmanifest.ClusterRoleName(long[1:]+"b"))
}
