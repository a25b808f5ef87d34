// Package attacks tests a running hub against holders of stolen tokens, and against users who guess names or forge fields. Each attack must
// fail, and each attack that reaches the hub must be reported by a condition and an event. It also tests invalid input of users and agents: a
// condition and an event explain it, and the hub continues once it is corrected.
package attacks

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
