// Package attacks is what somebody tries who has stolen a token, guesses names, or makes things up: against a running hub on real
// API servers. Nothing of it works, and all of it leaves a trace.
package attacks

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
