// Package privilege compares the rights of each identity with a table: every verb on every resource that the API server serves, in its own
// namespaces and in the namespaces of others. It runs the hub with the rights that its chart gives it.
package privilege

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }
