// Package leaks has the test that no secret gets anywhere but into the data of Secrets. Hub and agent are processes of their own,
// as talkative as they can be made.
package leaks

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

// programs is the folder with the programs that the pods run.
var programs string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "muster-programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir, "../../../cmd/fleetcontroller", "../../../cmd/fleetagent")
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s\n%v\n", output, err)
		return 1
	}
	programs = dir
	return controlplane.RunTests(m)
}
