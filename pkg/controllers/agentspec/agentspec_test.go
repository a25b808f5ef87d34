package agentspec

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
)

func TestPullSecrets(t *testing.T) {
	hub := config.Hub{ImagePullSecrets: []config.LocalObjectReference{{Name: "hubs"}}}
	for _, row := range []struct {
		name   string
		own    *[]corev1.LocalObjectReference
		want   []string
		copied bool
	}{
		{"none of its own: copies of the hub's", nil, []string{"hubs"}, true},
		{"its own", &[]corev1.LocalObjectReference{{Name: "own"}}, []string{"own"}, false},
		{"an empty list of its own", &[]corev1.LocalObjectReference{}, nil, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			names, copied := PullSecrets(hub, &fleet.Cluster{Spec: fleet.ClusterSpec{AgentPullSecrets: row.own}})
			assert.Equal(t, row.want, names)
			assert.Equal(t, row.copied, copied)
		})
	}
}

func TestOptions(t *testing.T) {
	c := &app.Context{Config: &config.Store{}, SystemNamespace: "sys", Agent: app.AgentSettings{Image: "release"}}
	cluster := &fleet.Cluster{Spec: fleet.ClusterSpec{AgentEnvVars: []corev1.EnvVar{{Name: "A", Value: "b"}}}}
	o := Options(c, cluster, "g")
	assert.Equal(t, "release", o.Image)
	assert.Equal(t, "sys", o.Namespace)
	assert.Equal(t, []corev1.EnvVar{{Name: "GENERATION", Value: "g"}, {Name: "A", Value: "b"}}, o.EnvVars, "those of the Cluster come last and override")

	c.Config.Set(config.Hub{AgentImage: "configured"})
	cluster.Spec.AgentNamespace = "own"
	o = Options(c, cluster, "g")
	assert.Equal(t, "configured", o.Image)
	assert.Equal(t, "own", o.Namespace)
	assert.Equal(t, "own", o.Scope)
}
