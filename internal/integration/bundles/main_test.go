// Package bundles tests Bundles on their way to Clusters, where the test plays the agents.
package bundles

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
