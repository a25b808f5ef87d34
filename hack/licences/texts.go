package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// noticeFile is how files are called that have to be passed on beside licences.
var noticeFile = regexp.MustCompile(`(?i)^(notice|patents|copyright)([-.].*)?$`)

const preface = `What the programs of this image are made of, under which licences, and what these ask to be passed on with it. Each text is here once,
below what it is of. The source code of MODULE VERSION is at https://proxy.golang.org/MODULE/@v/VERSION.zip, with an exclamation mark and the
small letter for each capital one.
`

// source is something that is in the image: a module, or Go itself.
type source struct {
	name string
	root string
	// folders are those below root whose packages are linked. A package that was copied from elsewhere keeps its own licence beside it.
	folders []string
}

// passedOn is one text and the files in which it is found.
type passedOn struct {
	text string
	of   []string
}

// writeTexts writes the texts of what the packages of some modules are linked with, for Linux and one architecture.
func writeTexts(architecture string, groups [][]string, out io.Writer) error {
	var sources []source
	for _, group := range groups {
		if len(group) < 2 {
			return errors.New(usage)
		}
		found, err := sourcesOf(architecture, group[0], group[1:])
		if err != nil {
			return err
		}
		sources = append(sources, found...)
	}
	golang, err := goItself()
	if err != nil {
		return err
	}
	texts, err := collect(append(sources, golang))
	if err != nil {
		return err
	}
	return write(texts, out)
}

// sourcesOf are the modules that packages in a folder are linked with, their own among them.
func sourcesOf(architecture, folder string, packages []string) ([]source, error) {
	output, err := goCommand(folder, []string{"GOOS=linux", "GOARCH=" + architecture, "CGO_ENABLED=0"},
		append([]string{"list", "-deps", "-json=Dir,Module"}, packages...)...)
	if err != nil {
		return nil, err
	}
	return parseSources(output)
}

// goItself is the library that is linked into every program.
func goItself() (source, error) {
	output, err := goCommand(".", nil, "env", "GOVERSION", "GOROOT")
	if err != nil {
		return source{}, err
	}
	version, root, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
	return source{name: "Go's own library " + version, root: root}, nil
}

func goCommand(folder string, environment []string, arguments ...string) ([]byte, error) {
	command := exec.Command("go", arguments...)
	command.Dir, command.Env = folder, append(os.Environ(), environment...)
	output, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("go %s: %w: %s", arguments[0], err, exit.Stderr)
	}
	return output, err
}

// collect finds each text once, in the order in which sources have them. One without any licence is an error.
func collect(sources []source) ([]*passedOn, error) {
	var all []*passedOn
	known := map[string]*passedOn{}
	done := map[string]bool{}
	for _, s := range sources {
		if done[s.name] {
			continue // two groups may have it
		}
		done[s.name] = true
		files, err := s.files()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(filepath.Join(s.root, file))
			if err != nil {
				return nil, err
			}
			text := strings.TrimLeft(strings.TrimRight(strings.ReplaceAll(string(data), "\r\n", "\n"), " \t\n"), "\n")
			if known[text] == nil {
				known[text] = &passedOn{text: text}
				all = append(all, known[text])
			}
			known[text].of = append(known[text].of, s.name+": "+filepath.ToSlash(file))
		}
	}
	return all, nil
}

// files are what a source asks to be passed on, by their paths below its root, sorted.
func (s source) files() ([]string, error) {
	var found []string
	licences := 0
	for _, folder := range upwards(s.root, s.folders) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			isLicence := licenceFile.MatchString(entry.Name())
			if entry.IsDir() || sourceFile.MatchString(entry.Name()) || !isLicence && !noticeFile.MatchString(entry.Name()) {
				continue
			}
			path, err := filepath.Rel(s.root, filepath.Join(folder, entry.Name()))
			if err != nil {
				return nil, err
			}
			found = append(found, path)
			if isLicence {
				licences++
			}
		}
	}
	if licences == 0 {
		return nil, errors.New("it has no file with a licence")
	}
	slices.Sort(found)
	return found, nil
}

// upwards are folders with all above them up to the root, each once.
func upwards(root string, folders []string) []string {
	all := []string{root}
	for _, folder := range folders {
		for ; len(folder) > len(root); folder = filepath.Dir(folder) {
			all = append(all, folder)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func write(texts []*passedOn, out io.Writer) error {
	if _, err := io.WriteString(out, preface); err != nil {
		return err
	}
	for _, t := range texts {
		line := strings.Repeat("=", 120)
		if _, err := fmt.Fprintf(out, "\n%s\n%s\n%s\n\n%s\n", line, strings.Join(t.of, "\n"), line, t.text); err != nil {
			return err
		}
	}
	return nil
}
