// Package badinput tests invalid input of users and agents: a condition and an event explain it, and the hub continues once it is corrected.
package badinput

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
