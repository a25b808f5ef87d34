// Package badinput tests what people and agents get wrong: each mistake is explained on its object and can be put right.
package badinput

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
