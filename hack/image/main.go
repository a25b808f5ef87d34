// Image writes what the images hold beside the programs. It depends on nothing but its arguments, the program it looks at
// and the modules pinned for it, so that an image can be built again, byte for byte, elsewhere and later.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

const usage = `usage: image roots
       image sbom -program FILE -version VERSION -created UNIXTIME`

// run writes what was asked for to out.
func run(arguments []string, out io.Writer) error {
	if len(arguments) == 0 {
		return errors.New(usage)
	}
	switch arguments[0] {
	case "roots":
		return writeRoots(out)
	case "sbom":
		return runSBOM(arguments[1:], out)
	}
	return fmt.Errorf("%q is unknown\n%s", arguments[0], usage)
}

func runSBOM(arguments []string, out io.Writer) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it, once
	program := flags.String("program", "", "the Go program in the image")
	version := flags.String("version", "", "what the program calls itself")
	created := flags.Int64("created", 0, "when the image counts as made, in seconds since 1970")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	inside, err := inspect(*program)
	if err != nil {
		return err
	}
	self, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program was built without module support, so it cannot tell the version of the certificate authorities")
	}
	roots, err := rootsModule(self)
	if err != nil {
		return err
	}
	return writeSBOM(out, inside, roots, *version, time.Unix(*created, 0))
}
