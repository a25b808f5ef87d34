package bundles

import (
	"fmt"
	"testing"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// A blow at any write, until the life of a Bundle needs fewer writes, leaves the same as none at all.
func TestBundlesUnderFaults(t *testing.T) {
	sweep := testenv.Sweep{Least: 12, Hub: []func(*muster.Options){soonCollected}}
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

// lifeOfABundle deploys the n-th Bundle to both Clusters, changes it, and deletes it.
func (s shop) lifeOfABundle(t *testing.T, n int) {
	t.Helper()
	first, second := fmt.Sprintf("first-%s-%d", s.ns, n), fmt.Sprintf("second-%s-%d", s.ns, n)
	s.bundle(t, "app", first, everywhere)
	s.allReport(t, first)
	s.change(t, "app", second)
	s.allReport(t, second)
	s.requireNoContent(t, first)
	s.deleteBundle(t, "app")
	testenv.RequireGone(t, s.hub.Fleet.Bundles(s.ns).Get, "Bundle", "app")
	s.requireOn(t, "app", []string{"a", "b"})
	s.requireNoContent(t, second)
	s.requireBothEmpty(t)
}

func (s shop) requireBothEmpty(t *testing.T) {
	t.Helper()
	for _, cluster := range []string{"a", "b"} {
		s.requireCluster(t, cluster, "0/0", "True AllReady")
	}
}

// allReport waits until both Clusters are to have the text, has their agents report it, and waits until that is shown.
func (s shop) allReport(t *testing.T, text string) {
	t.Helper()
	for _, cluster := range []string{"a", "b"} {
		s.eventuallyDeployment(t, cluster, "app", func(d *fleet.BundleDeployment) bool {
			return d.Labels[fleet.ContentNameLabel] == contentName(t, text)
		})
		// With so short a grace the hub may collect a Content before its BundleDeployment is there, and makes it again.
		testenv.EventuallyThere(t, s.hub.Fleet.Contents().Get, contentName(t, text))
		s.reports(t, cluster, "app", nil)
	}
	s.requireBundle(t, "app", "2/2", "", "True AllReady")
	for _, cluster := range []string{"a", "b"} {
		s.requireCluster(t, cluster, "1/1", "True AllReady")
	}
}
