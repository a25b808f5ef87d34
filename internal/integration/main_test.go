// Package integration has the tests that run hub and agents, wired as in production, against two real API servers.
package integration

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/controllers"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// clusters are the hub and the member that the tests of this package share.
func clusters(t *testing.T) (hub, member *testenv.Cluster) {
	t.Helper()
	return testenv.SharedCluster(t, "hub"), testenv.SharedCluster(t, "member")
}

func withBootstrap(o *controllers.Options) { o.DisableBootstrap = false }
