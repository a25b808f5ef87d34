// Package proxies tests clusters that reach each other only through an HTTP proxy. Hub, agent and proxy are separate processes, because
// the environment of a process determines its proxy.
package proxies

import (
	"fmt"
	"os"
	"testing"

	"github.com/muster-fleet/muster/internal/binaries"
)

// programs is the directory of the programs that the Pods run.
var programs string

func TestMain(m *testing.M) {
	if address := os.Getenv(envListen); address != "" {
		fmt.Println(serveProxy(address, os.Getenv(envAnswer)))
		os.Exit(1)
	}
	os.Exit(binaries.RunTests(m, &programs, "fleetcontroller", "fleetagent"))
}
