// Release creates the files of a release that a shell script cannot create reproducibly: archives, images of several architectures, and the manifest
// for krew. Its output depends only on its arguments and their files, so that two builds of a commit give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

const usage = `usage: release archive -created UNIXTIME OUTPUT NAME=FILE...
       release images -created UNIXTIME -name REFERENCE OUTPUT ARCHIVE...
       release krew -version VERSION -checksums FILE`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(arguments []string, out io.Writer) error {
	if len(arguments) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error is returned
	created := flags.Int64("created", 0, "the time of all files in seconds since 1970")
	name := flags.String("name", "", "the reference of the image, with its tag")
	version := flags.String("version", "", "the version of the release, with a v")
	checksums := flags.String("checksums", "", "the file with the SHA-256 sums of the archives")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	given := flags.Args()
	switch {
	case arguments[0] == "archive" && len(given) > 1:
		return writeArchive(given[0], given[1:], time.Unix(*created, 0))
	case arguments[0] == "images" && len(given) > 1 && *name != "":
		return writeImages(out, given[0], *name, given[1:], time.Unix(*created, 0))
	case arguments[0] == "krew" && len(given) == 0:
		return writeKrew(out, *version, *checksums)
	}
	return errors.New(usage)
}
