// Package registration tests the registration of clusters: tokens, requests, credentials, and the rights of each.
package registration

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	lassometrics "github.com/rancher/lasso/pkg/metrics"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// lasso has the metrics of lasso's controllers. The registration sets a variable that all controllers read, so it precedes them.
var lasso = prometheus.NewRegistry()

func TestMain(m *testing.M) {
	lassometrics.MustRegisterWithWorkqueue(lasso)
	os.Exit(controlplane.RunTests(m))
}

// stage adds the helpers of this package.
type stage struct{ *testenv.Stage }

func newStage(t *testing.T, change ...func(*muster.Options)) *stage {
	t.Helper()
	return &stage{testenv.NewStage(t, change...)}
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
