// Package identities tests who may register, the quarantine of agents, the counting of the uses of tokens, and the credentials of agents: short
// lifetimes, renewals, expiry while the agent is stopped, a new registration while the old credential is in use, and refusals.
package identities

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
