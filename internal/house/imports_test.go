// Package house has tests of the repository that no linter provides: which package may import which, what only a main function may do,
// and whether the documentation agrees with the code.
package house

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/muster-fleet/muster/"

// goPackage is a package in the output of `go list`, without its tests.
type goPackage struct {
	ImportPath string
	Imports    []string // direct
	Deps       []string // direct and indirect
}

// path is the path of a package inside the module.
func (p goPackage) path() string { return strings.TrimPrefix(p.ImportPath, module) }

func (p goPackage) is(root string) bool { return within(p.ImportPath, module+root) }

// within reports whether a package is the given one or below it.
func within(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// importRule forbids dependencies of some packages.
type importRule struct {
	in      []string
	except  []string
	forbids []string
	direct  bool // only direct imports count, because libraries may do it
	because string
}

var rules = []importRule{
	{
		in:      []string{"pkg/registration"},
		forbids: []string{"k8s.io/client-go", module + "pkg/generated"},
		because: "the decisions of the protocol are pure, so that each is a row of a table test",
	},
	{
		in:      []string{"pkg/registration"},
		forbids: []string{"os", "net", "context", "k8s.io/utils/clock"},
		direct:  true,
		because: "the protocol does no input or output",
	},
	{
		in:      []string{"pkg/agent"},
		forbids: []string{module + "pkg/controllers"},
		because: "hub and agent share only the wire format",
	},
	{
		in:      []string{"pkg/controllers"},
		forbids: []string{module + "pkg/agent"},
		because: "hub and agent share only the wire format",
	},
	{
		in:      []string{"pkg/controllers/bundle/templates"},
		forbids: []string{"k8s.io/client-go", module + "pkg/generated", module + "pkg/controllers"},
		because: "users write the templates, so that their result depends on the Bundle and the Cluster alone",
	},
	{
		in:      []string{"pkg/apis"},
		forbids: []string{module + "pkg/registration", module + "pkg/generated", "k8s.io/client-go/kubernetes"},
		because: "other programs import the types, and should not get other dependencies with them",
	},
	{
		in: []string{"pkg/credential", "pkg/config", "pkg/agentmanifest", "charts"},
		forbids: []string{
			module + "pkg/controllers", module + "pkg/agent",
		},
		because: "imports go down: hub and agent use these packages",
	},
	{
		in:      []string{"pkg", "charts"},
		forbids: []string{module + "internal/controlplane", module + "internal/localpods", module + "internal/demo"},
		because: "the programs do not depend on tests and the demo",
	},
	{
		in:      []string{"pkg", "charts"},
		forbids: []string{"testing"},
		direct:  true, // Helm does it
		because: "the programs do not depend on tests and the demo",
	},
	{
		in: []string{"pkg", "internal", "charts"},
		except: []string{
			"internal/launch",         // the part of a main function that the programs share
			"internal/testenv/golden", // has a flag of the tests
		},
		forbids: []string{"flag", "os/signal"},
		direct:  true,
		because: "flags and signals belong into a main function: hub and agent can be embedded in another program",
	},
	{
		in:      []string{"pkg", "internal", "charts"},
		forbids: []string{module + "cmd"},
		because: "imports go down: no package imports the programs",
	},
}

func (r importRule) violations(packages []goPackage) []string {
	var found []string
	for _, p := range packages {
		if !slices.ContainsFunc(r.in, p.is) || slices.ContainsFunc(r.except, p.is) {
			continue
		}
		for _, dependency := range r.dependencies(p) {
			forbidden := slices.ContainsFunc(r.forbids, func(root string) bool { return within(dependency, root) })
			if forbidden && !within(dependency, p.ImportPath) {
				found = append(found, fmt.Sprintf("%s depends on %s: %s", p.path(), dependency, r.because))
			}
		}
	}
	return found
}

func (r importRule) dependencies(p goPackage) []string {
	if r.direct {
		return p.Imports
	}
	return p.Deps
}

func TestImportsGoDown(t *testing.T) {
	packages := listPackages(t)
	require.NotEmpty(t, packages)
	for _, r := range rules {
		for _, violation := range r.violations(packages) {
			t.Error(violation)
		}
	}
}

func TestRuleViolations(t *testing.T) {
	r := importRule{in: []string{"pkg/a"}, forbids: []string{"example.com/x"}, because: "reason"}
	tests := map[string]struct {
		path       string
		dependency string
		want       []string
	}{
		"the package itself":                 {"pkg/a", "example.com/x", []string{"pkg/a depends on example.com/x: reason"}},
		"a package below, something below":   {"pkg/a/b", "example.com/x/y", []string{"pkg/a/b depends on example.com/x/y: reason"}},
		"another package with a longer name": {"pkg/ab", "example.com/x", nil},
		"another library with a longer name": {"pkg/a", "example.com/xy", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			packages := []goPackage{{ImportPath: module + test.path, Deps: []string{test.dependency}}}
			require.Equal(t, test.want, r.violations(packages))
		})
	}
}

func TestDirectRule(t *testing.T) {
	r := importRule{in: []string{"pkg"}, forbids: []string{"flag"}, direct: true}
	require.Empty(t, r.violations([]goPackage{{ImportPath: module + "pkg/a", Deps: []string{"flag"}}}))
	require.Len(t, r.violations([]goPackage{{ImportPath: module + "pkg/a", Imports: []string{"flag"}}}), 1)
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	list := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./cmd/...", "./pkg/...", "./internal/...", "./charts/...")
	list.Dir = root
	var stderr bytes.Buffer
	list.Stderr = &stderr
	output, err := list.Output()
	require.NoError(t, err, stderr.String())

	var packages []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(output)); decoder.More(); {
		var p goPackage
		require.NoError(t, decoder.Decode(&p))
		packages = append(packages, p)
	}
	return packages
}
