// Package bundles tests the deployment of Bundles to Clusters. The tests act as the agents.
package bundles

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
