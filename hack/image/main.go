// Image writes the files of the images other than the programs: the certificate authorities and the SBOM. Its output depends only on its
// arguments, the program and the modules in its go.mod, so that builds of images are reproducible.
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
       image sbom -program FILE -version VERSION -created UNIXTIME [-roots=false]`

// run writes the requested file to out.
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
	flags.SetOutput(io.Discard) // the error is returned
	program := flags.String("program", "", "the Go program in the image")
	version := flags.String("version", "", "the version of the program")
	withRoots := flags.Bool("roots", true, "whether the certificate authorities are distributed with the program, as in an image")
	created := flags.Int64("created", 0, "the creation time of the image in seconds since 1970")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	inside, err := inspect(*program)
	if err != nil {
		return err
	}
	if !*withRoots {
		return writeSBOM(out, inside, nil, *version, time.Unix(*created, 0))
	}
	self, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program was built without module support, so the version of the certificate authorities is unknown")
	}
	roots, err := rootsModule(self)
	if err != nil {
		return err
	}
	return writeSBOM(out, inside, roots, *version, time.Unix(*created, 0))
}
