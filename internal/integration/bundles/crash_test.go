package bundles

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// A fault is injected at each write of the hub in turn. The result must be the same as without a fault.
func TestBundlesUnderFaults(t *testing.T) {
	sample.Long(t)
	sweep := testenv.Sweep{Least: 20, Hub: []func(*muster.Options){soonCollected}}
	sweep.Run(t, func(t *testing.T, hub *testenv.Cluster) func(int, func()) {
		s := shop{hub: hub, ns: hub.Namespace(t)}
		s.cluster(t, "a", nil)
		s.cluster(t, "b", nil)
		s.requireBothEmpty(t)
		return func(n int, strike func()) {
			strike()
			s.lifeOfABundle(t, n)
		}
	})
}

// lifeOfABundle deploys the n-th Bundle with a Helm value to both Clusters, changes both, removes the value, and deletes the Bundle.
func (s shop) lifeOfABundle(t *testing.T, n int) {
	t.Helper()
	first, second := fmt.Sprintf("first-%s-%d", s.ns, n), fmt.Sprintf("second-%s-%d", s.ns, n)
	s.bundle(t, "app", first, func(b *fleet.Bundle) {
		everywhere(b)
		b.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"v": int64(1)}}}
	})
	s.requireValues(t, `{"v":1}`)
	s.allReport(t, first)
	s.merge(t, "Bundle", "app", `{"spec":{"helm":{"values":{"v":2}}}}`)
	s.requireValues(t, `{"v":2}`)
	s.merge(t, "Bundle", "app", `{"spec":{"helm":null}}`)
	s.change(t, "app", second)
	s.requireValues(t, "")
	s.allReport(t, second)
	s.requireNoContent(t, first)
	s.deleteBundle(t, "app")
	testenv.RequireGone(t, s.hub.Fleet.Bundles(s.ns).Get, "Bundle", "app")
	s.requireOn(t, "app", []string{"a", "b"})
	s.requireNoContent(t, second)
	s.requireBothEmpty(t)
}

// requireValues waits until both Clusters have a Secret with these Helm values, which the spec of the BundleDeployment names.
func (s shop) requireValues(t *testing.T, want string) {
	t.Helper()
	for _, cluster := range []string{"a", "b"} {
		testenv.Eventually(t, func() (bool, string) {
			d, err := s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).Get(t.Context(), "app", metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			secret, err := s.hub.Kubernetes.CoreV1().Secrets(d.Namespace).Get(t.Context(), "app", metav1.GetOptions{})
			if want == "" {
				return apierrors.IsNotFound(err) && d.Spec.ValuesHash == "", fmt.Sprintf("Secret: %v, digest %q", err, d.Spec.ValuesHash)
			}
			if err != nil {
				return false, err.Error()
			}
			sum := sha256.Sum256([]byte(want + want))
			return string(secret.Data["values"]) == want && d.Spec.ValuesHash == hex.EncodeToString(sum[:]) && !d.Spec.WaitingForValues &&
				metav1.IsControlledBy(secret, d), fmt.Sprintf("values %s, digest %s", secret.Data["values"], d.Spec.ValuesHash)
		})
	}
}

func (s shop) requireBothEmpty(t *testing.T) {
	t.Helper()
	for _, cluster := range []string{"a", "b"} {
		s.requireCluster(t, cluster, "0/0", "True AllReady")
	}
}

// allReport waits until both Clusters have a BundleDeployment with the text, reports it as deployed in place of their agents, and waits
// until the Bundle shows that.
func (s shop) allReport(t *testing.T, text string) {
	t.Helper()
	for _, cluster := range []string{"a", "b"} {
		s.eventuallyDeployment(t, cluster, "app", func(d *fleet.BundleDeployment) bool {
			return d.Labels[fleet.ContentNameLabel] == contentName(t, text)
		})
		// With such a short grace period the hub may delete a Content before its BundleDeployment exists, and then creates it again.
		testenv.EventuallyThere(t, s.hub.Fleet.Contents().Get, contentName(t, text))
		s.reports(t, cluster, "app", nil)
	}
	s.requireBundle(t, "app", "2/2", "", "True AllReady")
	for _, cluster := range []string{"a", "b"} {
		s.requireCluster(t, cluster, "1/1", "True AllReady")
	}
}
