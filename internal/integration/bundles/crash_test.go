package bundles

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// A blow to each write in the life of a Bundle in turn, until a whole life needs no more of them, leaves the same as none.
func TestABundleLivesThroughABlowAtAnyWrite(t *testing.T) {
	t.Parallel() // each blow has a hub of its own
	for _, blow := range []testenv.Blow{testenv.Kill, testenv.Fail, testenv.Drop} {
		t.Run(string(blow), func(t *testing.T) {
			t.Parallel()
			hub := testenv.OwnCluster(t, "bundles")
			supervised := hub.SupervisedHub(t, soonCollected)
			s := shop{hub: hub, ns: hub.Namespace(t)}
			s.cluster(t, "a", nil)
			s.cluster(t, "b", nil)
			s.requireBothEmpty(t)
			for n := 1; ; n += testenv.Stride() {
				began := time.Now()
				supervised.Strike(blow, n)
				s.lifeOfABundle(t, n)
				write := supervised.Struck()
				if write == "" {
					t.Logf("fewer than %d writes; the hub was started %d times", n, supervised.Starts())
					require.Greater(t, n, 12, "so few writes cannot be the life of a Bundle")
					return
				}
				t.Logf("%3d  %-22s %-100s %s", n, blow, write, time.Since(began).Round(time.Millisecond))
			}
		})
	}
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
