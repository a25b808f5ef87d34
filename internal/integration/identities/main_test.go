// Package identities tests who may register, the quarantine of agents, and the counting of the uses of tokens.
package identities

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
