// Package attacks tests what the holder of a stolen token, or a user who guesses names or forges fields, can do to a running hub on real
// API servers. Each attack must fail, and each one that reaches the hub must leave a condition and an event.
package attacks

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
