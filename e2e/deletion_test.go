//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/inventory"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestClusterDeletion(t *testing.T) {
	s := begin(t)
	s.workspace()
	m, _ := s.importAndAwait("m")
	stays, request := s.importAndAwait("stays")
	workload := s.named("workload")
	s.step("a workload is deployed to both", func() { s.deploy(workload, m, stays) })
	s.step("one of them is deleted", func() { s.fail(s.deleteCluster(s.Context(), m.namespace, m.name)) })
	s.step("the member has nothing of it", func() {
		s.fail(s.member.nothingLeft(s.Context(), m.mark(), inventory.OfNamespace))
		s.fail(s.member.nothingLeft(s.Context(), s.workNamespace(m), inventory.OfNamespace))
	})
	s.step("the hub has only the objects of the Cluster that a user created", func() {
		s.fail(s.hub.nothingLeft(s.Context(), m.mark()))
	})
	s.step("the other one is as it was", func() {
		stays.awaitNextHeartbeat()
		if stays.theRequest() != request {
			s.Errorf("%s has registered again", stays)
		}
	})
}

// deploy creates a Bundle and waits until both Clusters have deployed it.
func (s *scene) deploy(name string, on ...*enrolled) {
	s.Helper()
	for _, e := range on {
		e.others = append(e.others, s.workNamespace(e))
	}
	_, err := s.hub.fleet.Bundles(s.id).Create(s.Context(), s.workload(name, on...), metav1.CreateOptions{})
	s.fail(err)
	s.until("the Bundle to be ready on 2 Clusters", func(ctx context.Context) (bool, string) {
		b, err := s.hub.fleet.Bundles(s.id).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return b.Status.Summary.Ready == 2 && b.Status.Summary.DesiredReady == 2,
			fmt.Sprintf("%d of %d are; Ready=%s", b.Status.Summary.Ready, b.Status.Summary.DesiredReady, describe(b.Status.Conditions, fleet.ConditionReady))
	})
}

// workload is a Bundle with a ConfigMap for each of these Clusters, in a namespace of its own, because they share one member.
func (s *scene) workload(name string, on ...*enrolled) *fleet.Bundle {
	manifest := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n"
	bundle := &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.id, Name: name},
		Spec:       fleet.BundleSpec{Resources: []fleet.BundleResource{{Name: "workload.yaml", Content: manifest}}},
	}
	for _, e := range on {
		bundle.Spec.Targets = append(bundle.Spec.Targets, fleet.BundleTarget{
			ClusterName:             e.name,
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: s.workNamespace(e)},
		})
	}
	return bundle
}

func (s *scene) workNamespace(e *enrolled) string { return s.named("work-" + e.name) }
