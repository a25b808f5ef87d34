// Package imports tests the agents that a hub installs on members: their import, their settings, their Bundle and their removal. It also tests
// Clusters that were registered by Fleet.
package imports

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// stage adds the helpers of this package.
type stage struct{ *testenv.Stage }

func newStage(t *testing.T, change ...func(*muster.Options)) *stage {
	t.Helper()
	return &stage{testenv.NewStage(t, change...)}
}
