package shards

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A Bundle is of one hub, and the Clusters it is deployed to are of both.
func TestABundleIsDeployedByAllHubsAndSummedUpByOne(t *testing.T) {
	s := newScene(t)
	replicas := []*replica{start(t, s.hub, "a"), start(t, s.hub, "b")}
	await(t, replicas, 8, 8)
	const clusters = 12
	for n := range clusters {
		_, err := s.hub.Fleet.Clusters(s.ns).Create(t.Context(), &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("edge-", n), Labels: map[string]string{fleet.NonManagedAgentLabel: "true"},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := s.hub.Fleet.Bundles(s.ns).Create(t.Context(), &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: fleet.BundleSpec{
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: "default"},
			Resources:               []fleet.BundleResource{{Name: "cm.yaml", Content: "kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}"}},
			Targets:                 []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.reportAll(t, clusters)
	s.requireReady(t, clusters)

	_, err = s.hub.Fleet.Bundles(s.ns).Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"defaultNamespace":"other"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	s.reportAll(t, clusters)
	s.requireReady(t, clusters)

	require.NoError(t, s.hub.Fleet.Bundles(s.ns).Delete(t.Context(), "app", metav1.DeleteOptions{}))
	testenv.Eventually(t, func() (bool, string) {
		all, err := s.hub.Fleet.BundleDeployments("").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(all.Items) == 0, fmt.Sprintf("%d BundleDeployments are left", len(all.Items))
	})
}

// reportAll plays the agents of all Clusters, once they have what the Bundle asks for now.
func (s *scene) reportAll(t *testing.T, clusters int) {
	t.Helper()
	wanted := ""
	for n := range clusters {
		deployments := s.hub.Fleet.BundleDeployments(registration.ClusterNamespace(s.ns, fmt.Sprint("edge-", n)))
		var id string
		testenv.Eventually(t, func() (bool, string) {
			d, err := deployments.Get(t.Context(), "app", metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			id = d.Spec.DeploymentID
			return d.Status.AppliedDeploymentID != id && (wanted == "" || id == wanted), fmt.Sprintf("it is still %s, want %s", id, wanted)
		})
		wanted = id
		status, err := json.Marshal(map[string]any{"status": fleet.BundleDeploymentStatus{
			AppliedDeploymentID: id, Ready: true, NonModified: true,
			Conditions: []testenv.Generic{{Type: fleet.ConditionDeployed, Status: "True"}},
		}})
		require.NoError(t, err)
		_, err = deployments.Patch(t.Context(), "app", types.MergePatchType, status, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
}

func (s *scene) requireReady(t *testing.T, clusters int) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		b, err := s.hub.Fleet.Bundles(s.ns).Get(t.Context(), "app", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		want := fmt.Sprintf("%d/%d", clusters, clusters)
		return b.Status.ObservedGeneration == b.Generation && b.Status.Display.ReadyClusters == want, fmt.Sprintf("%+v, want %s", b.Status.Display, want)
	})
}
