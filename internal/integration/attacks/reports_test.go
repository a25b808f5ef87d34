package attacks

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Without the policies, the API server stores a large report of a compromised agent, and the hub copies a small part of it: otherwise the status of the
// Bundle and of the Cluster would be too large to be written. With the policies the API server refuses it.
func TestLargeReportWithoutThePolicies(t *testing.T) {
	sample.Long(t)
	s := testenv.EmptyStage(t)
	hub := s.Hub
	s.Running = hub.Hub(t, hub.WithoutAdmission(t))
	v := newVictim(t, s, s.Token(t, "shared"), "hostile")
	testenv.Create(t, hub.Fleet.Bundles(s.Namespace).Create, &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: fleet.BundleSpec{
			Resources: []fleet.BundleResource{{Name: "cm.yaml", Content: "{apiVersion: v1, kind: ConfigMap, metadata: {name: app}}"}},
			Targets:   []fleet.BundleTarget{{ClusterName: v.cluster()}},
		},
	})
	testenv.EventuallyThere(t, hub.Fleet.BundleDeployments(v.ClusterNamespace()).Get, "app")

	text := strings.Repeat("0123456789abcdef", 200<<10/16)
	_, err := hub.ClientFor(t, v.Bearer()).Fleet.BundleDeployments(v.ClusterNamespace()).Patch(t.Context(), "app", types.MergePatchType, []byte(
		`{"status":{"conditions":[{"type":"Deployed","status":"False","reason":"Error","message":"`+text+`"}],`+
			`"nonReadyStatus":[{"name":"`+text+`","summary":{"message":["`+text+`"]}}],"modifiedStatus":[{"name":"x","patch":"`+text+`"}]}}`),
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	testenv.EventuallyIs(t, hub.Fleet.Bundles(s.Namespace).Get, "app", func(b *fleet.Bundle) (bool, string) {
		return b.Status.Summary.ErrApplied == 1, "the Bundle does not show the report"
	})
	bundle := testenv.RequireThere(t, hub.Fleet.Bundles(s.Namespace).Get, "app")
	require.NotEmpty(t, bundle.Status.Summary.NonReadyResources[0].ModifiedStatus)
	assert.Less(t, len(testenv.Bytes(t, bundle)), 32<<10)
	cluster := s.EventuallyCluster(t, v.cluster(), func(c *fleet.Cluster) (bool, string) {
		return c.Status.Summary.ErrApplied == 1, "the Cluster does not show the report"
	})
	assert.Less(t, len(testenv.Bytes(t, cluster)), 32<<10)
}
