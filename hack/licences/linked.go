package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
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
	list := exec.Command("go", append([]string{"list", "-deps", "-json=Module"}, packages...)...)
	list.Dir = folder
	var complaint bytes.Buffer
	list.Stderr = &complaint
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, complaint.String())
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

// actual is the module that is compiled.
func (m module) actual() module {
	if m.Replace != nil {
		return *m.Replace
	}
	return m
}
