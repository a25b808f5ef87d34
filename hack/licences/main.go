// Licences checks the licences of all modules that are linked into programs, and fails if one of them is not allowed. With the word texts, it
// writes the texts that these licences require to be distributed with the programs.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed are the SPDX names of licences that require only the distribution of their text.
var allowed = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-2-Clause-FreeBSD", "BSD-3-Clause", "ISC", "MIT"}

// excepted are other licences of single modules, which are allowed for a reason.
var excepted = map[string]string{
	"github.com/cyphar/filepath-securejoin": "MPL-2.0",      // allows the distribution of unchanged files
	"github.com/opencontainers/go-digest":   "CC-BY-SA-4.0", // of its documentation, which is not linked
}

const usage = `usage: licences [-os=SYSTEM] [-arch=ARCH] DIRECTORY PACKAGE...
       licences texts [-os=SYSTEM] [-arch=ARCH] DIRECTORY PACKAGE... [-- DIRECTORY PACKAGE...]...`

// minCoverage is the percentage of a file that must be the text of known licences. The rest are names and years.
const minCoverage = 75

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// run checks the modules that packages in a directory are linked with, or writes their texts.
func run(arguments []string, out io.Writer) error {
	if len(arguments) > 0 && arguments[0] == "texts" {
		return writeTexts(arguments[1:], out)
	}
	system, architecture, arguments, err := platform(arguments)
	if err != nil {
		return err
	}
	if len(arguments) < 2 {
		return errors.New(usage)
	}
	modules, err := linked(arguments[0], system, architecture, arguments[1:])
	if err != nil {
		return err
	}
	modules = slices.DeleteFunc(modules, func(m *module) bool { return m.Main })
	count := map[string]int{}
	var problems []error
	for _, m := range modules {
		found, err := licencesOf(m.Dir)
		if err == nil {
			err = permitted(m.Path, found)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.name(), err))
		}
		count[strings.Join(found, " and ")]++
	}
	var parts []string
	for _, licence := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d %s", count[licence], licence))
	}
	fmt.Fprintf(out, "licences: %d modules: %s\n", len(modules), strings.Join(parts, ", "))
	return errors.Join(problems...)
}

// platform reads the flags for another platform than Linux on this machine's architecture, and returns the arguments after them.
func platform(arguments []string) (system, architecture string, rest []string, err error) {
	flags := flag.NewFlagSet("licences", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error is returned
	flags.StringVar(&system, "os", "linux", "the operating system of the programs")
	flags.StringVar(&architecture, "arch", runtime.GOARCH, "their architecture")
	if err := flags.Parse(arguments); err != nil {
		return "", "", nil, fmt.Errorf("%w\n%s", err, usage)
	}
	return system, architecture, flags.Args(), nil
}

// module is a module from the output of go list.
type module struct {
	Path, Version, Dir string
	Main               bool
	Replace            *module
	packages           []string // directories of the packages that are linked
}

func (m module) name() string { return strings.TrimSpace(m.Path + " " + m.Version) }

// linked returns the modules that packages are linked with on a platform, their own module first.
func linked(dir, system, architecture string, packages []string) ([]*module, error) {
	output, err := goCommand(dir, []string{"GOOS=" + system, "GOARCH=" + architecture, "CGO_ENABLED=0"},
		append([]string{"list", "-deps", "-json=Dir,Module"}, packages...)...)
	if err != nil {
		return nil, err
	}
	return parseList(output)
}

func parseList(output []byte) ([]*module, error) {
	found := map[string]*module{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); decoder.More(); {
		var p struct {
			Dir    string
			Module *module
		}
		if err := decoder.Decode(&p); err != nil {
			return nil, fmt.Errorf("reading the output of go list: %w", err)
		}
		if p.Module == nil {
			continue // a package of Go's standard library
		}
		m := p.Module
		if m.Replace != nil {
			m = m.Replace
		}
		if found[m.Path] == nil {
			found[m.Path] = m
		}
		found[m.Path].packages = append(found[m.Path].packages, p.Dir)
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *module) int {
		if a.Main != b.Main {
			return map[bool]int{true: -1, false: 1}[a.Main]
		}
		return strings.Compare(a.Path, b.Path)
	}), nil
}

func goCommand(dir string, environment []string, arguments ...string) ([]byte, error) {
	command := exec.Command("go", arguments...)
	command.Dir, command.Env = dir, append(os.Environ(), environment...)
	output, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("go %s: %w: %s", arguments[0], err, exit.Stderr)
	}
	return output, err
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([-.].*)?$`)
	noticeFile  = regexp.MustCompile(`(?i)^(notice|patents|copyright)([-.].*)?$`)
)

// files returns the files in a directory, except Go source, whose name matches one of the patterns.
func files(dir string, patterns ...*regexp.Regexp) (found []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		matches := slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(entry.Name()) })
		if matches && !entry.IsDir() && filepath.Ext(entry.Name()) != ".go" {
			found = append(found, filepath.Join(dir, entry.Name()))
		}
	}
	return found, err
}

var errNoLicence = errors.New("it has no file with a licence")

// licencesOf returns the licences of a module from the files in its root.
func licencesOf(dir string) (found []string, err error) {
	all, err := files(dir, licenceFile)
	if err != nil {
		return nil, err
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		coverage, recognized := licensecheck.Scan(text), false
		for _, match := range coverage.Match {
			if !match.IsURL {
				found, recognized = append(found, match.ID), true
			}
		}
		if !recognized || coverage.Percent < minCoverage {
			return nil, fmt.Errorf("%s: %.0f %% of it are the text of known licences, which is less than %d", filepath.Base(file), coverage.Percent, minCoverage)
		}
	}
	if len(found) == 0 {
		return nil, errNoLicence
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

func permitted(path string, found []string) error {
	for _, licence := range found {
		if !slices.Contains(allowed, licence) && excepted[path] != licence {
			return fmt.Errorf("its licence is %s, which is not one of %s: remove the module, or let the maintainers decide about the licence",
				licence, strings.Join(allowed, ", "))
		}
	}
	return nil
}
