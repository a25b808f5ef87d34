package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// module is what go list says of one.
type module struct {
	Path, Version, Dir string
	Main               bool
	Replace            *module
}

// linked are the modules that packages need to be built, other than their own, sorted.
func linked(folder string, packages []string) ([]module, error) {
	output, err := goCommand(folder, nil, append([]string{"list", "-deps", "-json=Module"}, packages...)...)
	if err != nil {
		return nil, err
	}
	return parseList(output)
}

func parseList(output []byte) ([]module, error) {
	found := map[string]module{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); decoder.More(); {
		var p struct{ Module *module }
		if err := decoder.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list says what cannot be understood: %w", err)
		}
		if p.Module != nil && !p.Module.Main {
			found[p.Module.Path] = p.Module.actual()
		}
	}
	all := make([]module, 0, len(found))
	for _, m := range found {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}

// parseSources finds the modules of packages, sorted, the main one first.
func parseSources(output []byte) ([]source, error) {
	found := map[string]*source{}
	var main []string
	for decoder := json.NewDecoder(bytes.NewReader(output)); decoder.More(); {
		var p struct {
			Dir    string
			Module *module
		}
		if err := decoder.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list says what cannot be understood: %w", err)
		}
		if p.Module == nil {
			continue // of Go itself
		}
		m := p.Module.actual()
		name := strings.TrimSpace(m.Path + " " + m.Version)
		if found[name] == nil {
			found[name] = &source{name: name, root: m.Dir}
		}
		found[name].folders = append(found[name].folders, p.Dir)
		if p.Module.Main {
			main = []string{name}
		}
	}
	return inOrder(found, main), nil
}

func inOrder(found map[string]*source, first []string) []source {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(name string) bool { return slices.Contains(first, name) })
	all := make([]source, 0, len(found))
	for _, name := range append(first, names...) {
		all = append(all, *found[name])
	}
	return all
}

// actual is the module that is compiled.
func (m module) actual() module {
	if m.Replace != nil {
		return *m.Replace
	}
	return m
}
