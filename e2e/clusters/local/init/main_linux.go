// Init is the first process of a machine.
//
// usage: init SPEC-FILE, in new pid, mount, uts, ipc and net namespaces
package main

import (
	"fmt"
	"os"

	"github.com/muster-fleet/muster/e2e/clusters/local/machine"
)

func main() {
	// Boot returns only with an error.
	fmt.Fprintln(os.Stderr, "init:", boot(os.Args[1:]))
	os.Exit(1)
}

func boot(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("expected the file with the specification of the machine, got %q", args)
	}
	// In another process it would change the mounts of its caller.
	if os.Getpid() != 1 {
		return fmt.Errorf("this is process %d: it must be the first process of a pid namespace", os.Getpid())
	}
	spec, err := machine.Read(args[0])
	if err != nil {
		return err
	}
	return machine.Boot(spec)
}
