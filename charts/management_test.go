package charts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/inventory"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

// A management server installs the kinds and then the hub, and upgrades the hub whenever its own settings change. The values that a
// person has set stay.
func TestManagementServerInstallsAndUpgradesTheHub(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	before := s.inventory()
	s.serverUpgrade(t, charts.CRD, nil)
	wanted := readValues(t, "testdata/fleet/rancher.values.yaml")
	s.serverUpgrade(t, charts.Hub, wanted)
	cluster := s.register("behind-a-server")

	// The server must not undo what a person has changed.
	byHand := merged(t, wanted, parseValues(t, "{controller: {replicas: 2}, agentCheckinInterval: 1m}"))
	s.upgrade(t, charts.Hub, byHand)
	wanted["apiServerURL"] = "https://moved.example.com"
	wanted["apiServerCA"] = ""
	wanted["proxy"] = nil // removes the value
	s.serverUpgrade(t, charts.Hub, wanted)

	assert.Contains(t, s.hubConfig(), "https://moved.example.com")
	assert.Contains(t, s.hubConfig(), `"apiServerCA": ""`)
	assert.Contains(t, s.hubConfig(), `"agentCheckinInterval": "1m"`)
	deployment, err := s.core.AppsV1().Deployments(systemNamespace).Get(t.Context(), "fleet-controller", metav1.GetOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, *deployment.Spec.Replicas)
	assert.Empty(t, variable(deployment.Spec.Template.Spec.Containers[0], "HTTPS_PROXY"))
	assert.Equal(t, "rancher-critical", deployment.Spec.Template.Spec.PriorityClassName)
	assert.NotContains(t, inventory.List(s.inventory().Since(before)), "fleet-controller-bootstrap")

	s.uninstall(t, charts.Hub)
	s.uninstall(t, charts.CRD)
	s.requireStillThere(cluster)
	s.requireOnlyKindsSince(before)
}
