// Package faults tests blows to the hub and to its API server at every step of a registration.
package faults

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
