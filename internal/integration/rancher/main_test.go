// Package rancher tests this hub in place of Fleet in a Rancher-like management server.
package rancher

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
