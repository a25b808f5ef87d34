// Licences looks at the licence of every module that is linked into the programs. It ends with an error when one of them is
// not among those that this project may ship with. With the word texts it writes what these licences ask to be passed on.
package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
)

// allowed are the licences that ask for nothing but their text to be passed on, by their SPDX names.
var allowed = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-2-Clause-FreeBSD", "BSD-3-Clause", "ISC", "MIT"}

// excepted are licences of some modules that are allowed for a reason.
var excepted = map[string]string{
	"github.com/cyphar/filepath-securejoin": "MPL-2.0",      // of files that we pass on as they are, which it allows
	"github.com/opencontainers/go-digest":   "CC-BY-SA-4.0", // of its documentation, which is not linked
}

const usage = `usage: licences FOLDER PACKAGE...
       licences texts [-arch=ARCH] FOLDER PACKAGE... [-- FOLDER PACKAGE...]...`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// run checks what the packages in a folder of a module are linked with, or writes the texts of it.
func run(arguments []string, out io.Writer) error {
	if len(arguments) > 0 && arguments[0] == "texts" {
		return runTexts(arguments[1:], out)
	}
	return check(arguments, out)
}

func runTexts(arguments []string, out io.Writer) error {
	architecture := runtime.GOARCH
	if len(arguments) > 0 {
		if given, ok := strings.CutPrefix(arguments[0], "-arch="); ok {
			architecture, arguments = given, arguments[1:]
		}
	}
	groups := [][]string{nil}
	for _, argument := range arguments {
		if argument == "--" {
			groups = append(groups, nil)
			continue
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], argument)
	}
	return writeTexts(architecture, groups, out)
}

func check(arguments []string, out io.Writer) error {
	if len(arguments) < 2 {
		return errors.New(usage)
	}
	modules, err := linked(arguments[0], arguments[1:])
	if err != nil {
		return err
	}
	count := map[string]int{}
	var problems []error
	for _, m := range modules {
		found, err := licencesOf(m.Dir)
		if err == nil {
			err = permitted(m.Path, found)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %s: %w", m.Path, m.Version, err))
		}
		count[strings.Join(found, " and ")]++
	}
	fmt.Fprintf(out, "licences: %d modules: %s\n", len(modules), summary(count))
	return errors.Join(problems...)
}

func summary(count map[string]int) string {
	var parts []string
	for _, licence := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d %s", count[licence], licence))
	}
	return strings.Join(parts, ", ")
}

func permitted(path string, found []string) error {
	for _, licence := range found {
		if !slices.Contains(allowed, licence) && excepted[path] != licence {
			return fmt.Errorf("its licence is %s, and not one of %s: do without the module, or have somebody decide about the licence",
				licence, strings.Join(allowed, ", "))
		}
	}
	return nil
}
