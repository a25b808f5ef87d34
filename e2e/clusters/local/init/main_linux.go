// Init is the first process of a machine.
//
// usage: init SPEC-FILE, in fresh pid, mount, uts, ipc and net namespaces
package main

import (
	"fmt"
	"os"

	"github.com/muster-fleet/muster/e2e/clusters/local/machine"
)

func main() {
	// There is nothing else to return to.
	fmt.Fprintln(os.Stderr, "init:", boot(os.Args[1:]))
	os.Exit(1)
}

func boot(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want the file of the machine's specification, have %q", args)
	}
	// Elsewhere it would mount over the folders of whoever called it.
	if os.Getpid() != 1 {
		return fmt.Errorf("this is process %d: it has to be the first one of a pid namespace", os.Getpid())
	}
	spec, err := machine.Read(args[0])
	if err != nil {
		return err
	}
	return machine.Boot(spec)
}
