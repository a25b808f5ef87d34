// Package proxies has the tests of clusters whose only way to each other is an HTTP proxy. Hub, agent and proxy are processes of
// their own: which proxy to use is in a process's environment.
package proxies

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

// programs is the folder with the programs that the pods run.
var programs string

func TestMain(m *testing.M) {
	if address := os.Getenv(envListen); address != "" {
		fmt.Println(serveProxy(address, os.Getenv(envAnswer)))
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

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
