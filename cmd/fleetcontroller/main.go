// Fleetcontroller is the hub: it registers member clusters with the cluster it runs in.
package main

import (
	"os"

	"github.com/muster-fleet/muster/internal/launch"
)

func main() { os.Exit(launch.Main(newApp(run))) }
