// Bench measures a hub: the cost of registrations, imports and deletions, and how it grows.
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
	os.Exit(launch.Main(command.App(os.Stdout, os.Stderr, limits)))
}
