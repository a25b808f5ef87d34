// Package leaks tests that secrets are only in the data of Secrets. Hub and agent are processes of their own, and log as much as
// possible.
package leaks

import (
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/binaries"
)

// programs is the folder with the programs that the pods run.
var programs string

func TestMain(m *testing.M) {
	os.Exit(binaries.RunTests(m, &programs, "fleetcontroller", "fleetagent"))
}
