// Package proxies has the tests of clusters whose only way to each other is an HTTP proxy. Hub, agent and proxy are processes of
// their own: which proxy to use is in a process's environment.
package proxies

import (
	"fmt"
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/binaries"
)

// programs is the folder with the programs that the pods run.
var programs string

func TestMain(m *testing.M) {
	if address := os.Getenv(envListen); address != "" {
		fmt.Println(serveProxy(address, os.Getenv(envAnswer)))
		os.Exit(1)
	}
	os.Exit(binaries.RunTests(m, &programs, "fleetcontroller", "fleetagent"))
}
