package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const preface = `The modules of which the programs here consist, with the texts that their licences require to be distributed. Each text appears
once, below the names of the files that contain it. The source code of MODULE VERSION is at https://proxy.golang.org/MODULE/@v/VERSION.zip;
in MODULE and VERSION, write an exclamation mark and the small letter for each capital letter.
`

// writeTexts writes the texts for the modules that the packages of one or more directories are linked with.
func writeTexts(arguments []string, out io.Writer) error {
	system, architecture, arguments, err := platform(arguments)
	if err != nil {
		return err
	}
	var modules []*module
	for last := false; !last; {
		group := arguments
		end := slices.Index(arguments, "--")
		if last = end < 0; !last {
			group, arguments = arguments[:end], arguments[end+1:]
		}
		if len(group) < 2 {
			return errors.New(usage)
		}
		found, err := linked(group[0], system, architecture, group[1:])
		if err != nil {
			return err
		}
		modules = append(modules, found...)
	}
	output, err := goCommand(".", nil, "env", "GOVERSION", "GOROOT")
	if err != nil {
		return err
	}
	version, root, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
	texts, err := collect(append(modules, &module{Path: "Go's standard library", Version: version, Dir: root}))
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, preface); err != nil {
		return err
	}
	line := strings.Repeat("=", 120)
	for _, t := range texts {
		if _, err := fmt.Fprintf(out, "\n%s\n%s\n%s\n\n%s\n", line, strings.Join(t.files, "\n"), line, t.text); err != nil {
			return err
		}
	}
	return nil
}

// licenceText is a text and the files that contain it.
type licenceText struct {
	text  string
	files []string
}

// collect returns each text once, in the order of the modules. A module without any licence is an error.
func collect(modules []*module) (all []*licenceText, err error) {
	known, done := map[string]*licenceText{}, map[string]bool{}
	for _, m := range modules {
		if done[m.name()] {
			continue // another group has it too
		}
		done[m.name()] = true
		paths, err := m.textFiles()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name(), err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			text := strings.TrimLeft(strings.TrimRight(strings.ReplaceAll(string(data), "\r\n", "\n"), " \t\n"), "\n")
			if known[text] == nil {
				known[text] = &licenceText{text: text}
				all = append(all, known[text])
			}
			relative, err := filepath.Rel(m.Dir, path)
			if err != nil {
				return nil, err
			}
			known[text].files = append(known[text].files, m.name()+": "+filepath.ToSlash(relative))
		}
	}
	return all, nil
}

// textFiles are the licences and notices in the root of a module and in the directories from there to its linked packages: a package that
// was copied from another module can have its own licence.
func (m *module) textFiles() (found []string, err error) {
	dirs := []string{m.Dir}
	for _, dir := range m.packages {
		for ; len(dir) > len(m.Dir); dir = filepath.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	licences := 0
	for _, dir := range slices.Compact(dirs) {
		of, err := files(dir, licenceFile)
		if err != nil {
			return nil, err
		}
		licences += len(of)
		if of, err = files(dir, licenceFile, noticeFile); err != nil {
			return nil, err
		}
		found = append(found, of...)
	}
	if licences == 0 {
		return nil, errNoLicence
	}
	slices.Sort(found)
	return found, nil
}
