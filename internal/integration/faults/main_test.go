// Package faults tests registrations while the hub is killed, its writes fail, or its API server stops, at every step.
package faults

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
