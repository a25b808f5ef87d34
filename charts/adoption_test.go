package charts_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The README promises it: the hub has no setting for extra volumes.
func TestExtraVolumesStayWhenTheHubTakesTheAgentOver(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	before := s.inventory()
	values := readValues(t, "testdata/fleet-agent/replicas.values.yaml")
	values["fleetAgent"] = parseValues(t, `{extraVolumes: [{name: authorities, configMap: {name: ours}}], extraVolumeMounts: [{name: authorities, mountPath: /etc/pki/tls/certs}]}`)
	s.install(t, charts.Agent, values)

	s.applyAgentOfTheHub()
	adopted, err := s.core.AppsV1().Deployments(systemNamespace).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 1, *adopted.Spec.Replicas, "the hub's settings hold")
	var volumes, mounts []string
	for _, volume := range adopted.Spec.Template.Spec.Volumes {
		volumes = append(volumes, volume.Name)
	}
	for _, mount := range adopted.Spec.Template.Spec.Containers[0].VolumeMounts {
		mounts = append(mounts, mount.MountPath)
	}
	assert.ElementsMatch(t, []string{"kube", "tmp", "authorities"}, volumes)
	assert.ElementsMatch(t, []string{"/.kube", "/tmp", "/etc/pki/tls/certs"}, mounts)

	s.uninstall(t, charts.Agent)
	s.requireAsBefore(before)
}

// applyAgentOfTheHub writes the Deployment of the agent's Bundle as the agent that deploys it does.
func (s *scene) applyAgentOfTheHub() {
	s.Helper()
	objects, err := agentmanifest.Render(agentmanifest.Options{Namespace: systemNamespace, Image: "muster-fleet/fleet-agent:dev"})
	require.NoError(s, err)
	for _, object := range objects {
		deployment, ok := object.(*appsv1.Deployment)
		if !ok {
			continue
		}
		data, err := json.Marshal(deployment)
		require.NoError(s, err)
		_, err = s.core.AppsV1().Deployments(systemNamespace).Patch(context.Background(), deployment.Name, types.ApplyPatchType, data,
			metav1.PatchOptions{FieldManager: registration.FieldManager, Force: ptr.To(true)})
		require.NoError(s, err)
		return
	}
	s.Fatal("the hub's agent has no Deployment")
}
