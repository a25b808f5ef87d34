// Bench measures a hub: what a registration, an import and a deletion cost, and how that grows.
package main

import (
	_ "embed"
	"os"

	"github.com/muster-fleet/muster/internal/bench/command"
	"github.com/muster-fleet/muster/internal/launch"
)

//go:embed budgets.yaml
var limits []byte

func main() {
	os.Exit(launch.Main(command.App(command.Streams{Out: os.Stdout, Err: os.Stderr}, limits)))
}
