// Package costs tests the requests that a hub sends, the delays that it causes, and that nothing runs after it has stopped.
package costs

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// stage adds the helpers of this package.
type stage struct{ *testenv.Stage }
