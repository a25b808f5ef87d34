// Fleetagent is the agent of a member cluster: it registers with the hub and keeps it informed.
package main

import (
	"os"

	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/agent"
)

func main() {
	launch.SpareMemory()
	os.Exit(launch.Main(newApp(agent.Run)))
}
