package agentspec

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
)

func TestPullSecrets(t *testing.T) {
	secrets := []config.LocalObjectReference{{Name: "hubs"}}
	for _, row := range []struct {
		name   string
		only   []string // ImagePullSecretWorkspaces
		own    *[]corev1.LocalObjectReference
		want   []string
		copied bool
	}{
		{"none of its own: copies of the hub's", nil, nil, []string{"hubs"}, true},
		{"its workspace is named", []string{"other", "ws"}, nil, []string{"hubs"}, true},
		{"only other workspaces are named", []string{"other"}, nil, nil, true},
		{"its own, in a workspace that is not named", []string{"other"}, &[]corev1.LocalObjectReference{{Name: "own"}}, []string{"own"}, false},
		{"its own", nil, &[]corev1.LocalObjectReference{{Name: "own"}}, []string{"own"}, false},
		{"an empty list of its own", nil, &[]corev1.LocalObjectReference{}, nil, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			names, copied := PullSecrets(config.Hub{ImagePullSecrets: secrets, ImagePullSecretWorkspaces: row.only}, &fleet.Cluster{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ws"}, Spec: fleet.ClusterSpec{AgentPullSecrets: row.own},
			})
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
