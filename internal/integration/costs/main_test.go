// Package costs tests what a hub costs: the requests it sends, the time others wait, and what it leaves running.
package costs

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// stage has the verbs of this package.
type stage struct{ *testenv.Stage }

func newStage(t *testing.T, change ...func(*muster.Options)) *stage {
	t.Helper()
	return &stage{testenv.NewStage(t, change...)}
}
