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
)

// lasso has the metrics of lasso's controllers. The registration sets a variable that all controllers read, so it precedes them.
var lasso = prometheus.NewRegistry()

func TestMain(m *testing.M) {
	lassometrics.MustRegisterWithWorkqueue(lasso)
	os.Exit(controlplane.RunTests(m))
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
