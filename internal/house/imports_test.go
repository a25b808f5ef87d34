// Package house holds the rules of the house that no linter knows: which room may know of which, and what only a main
// function may do.
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

// goPackage is what `go list` tells of a package, tests left out.
type goPackage struct {
	ImportPath string
	Imports    []string // direct
	Deps       []string // direct and indirect
}

// room is the path of a package inside the module.
func (p goPackage) room() string { return strings.TrimPrefix(p.ImportPath, module) }

func (p goPackage) is(room string) bool { return within(p.ImportPath, module+room) }

// within says whether a package is the given one or below it.
func within(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// rule forbids packages of some rooms to depend on something.
type rule struct {
	rooms   []string
	except  []string
	forbids []string
	direct  bool // only direct imports count, because libraries may do it
	because string
}

var rules = []rule{
	{
		rooms:   []string{"pkg/registration"},
		forbids: []string{"k8s.io/client-go", module + "pkg/generated"},
		because: "the protocol decides, others carry out: it is pure, so that each decision is a row of a table test",
	},
	{
		rooms:   []string{"pkg/registration"},
		forbids: []string{"os", "net", "context", "k8s.io/utils/clock"},
		direct:  true,
		because: "the protocol does no input or output",
	},
	{
		rooms:   []string{"pkg/agent"},
		forbids: []string{module + "pkg/controllers"},
		because: "hub and agent meet on the wire only",
	},
	{
		rooms:   []string{"pkg/controllers"},
		forbids: []string{module + "pkg/agent"},
		because: "hub and agent meet on the wire only",
	},
	{
		rooms:   []string{"pkg/apis"},
		forbids: []string{module + "pkg/registration", module + "pkg/generated", "k8s.io/client-go/kubernetes"},
		because: "other programs import the types, and should get nothing else with them",
	},
	{
		rooms: []string{"pkg/credential", "pkg/config", "pkg/agentmanifest", "charts"},
		forbids: []string{
			module + "pkg/controllers", module + "pkg/agent",
		},
		because: "arrows go downwards: hub and agent use these rooms",
	},
	{
		rooms:   []string{"pkg", "charts"},
		forbids: []string{module + "internal/controlplane", module + "internal/localpods", module + "internal/demo"},
		because: "what ships knows nothing of tests and the demo",
	},
	{
		rooms:   []string{"pkg", "charts"},
		forbids: []string{"testing"},
		direct:  true, // Helm does it
		because: "what ships knows nothing of tests and the demo",
	},
	{
		rooms:   []string{"pkg", "internal", "charts"},
		except:  []string{"internal/launch"}, // the part of a main function that the programs share
		forbids: []string{"flag", "os/signal"},
		direct:  true,
		because: "flags and signals belong to a main function: hub and agent can be embedded in another program",
	},
	{
		rooms:   []string{"pkg", "internal", "charts"},
		forbids: []string{module + "cmd"},
		because: "arrows go downwards: nothing knows the programs",
	},
}

func (r rule) violations(packages []goPackage) []string {
	var found []string
	for _, p := range packages {
		if !slices.ContainsFunc(r.rooms, p.is) || slices.ContainsFunc(r.except, p.is) {
			continue
		}
		for _, dependency := range r.dependencies(p) {
			forbidden := slices.ContainsFunc(r.forbids, func(root string) bool { return within(dependency, root) })
			if forbidden && !within(dependency, p.ImportPath) {
				found = append(found, fmt.Sprintf("%s depends on %s: %s", p.room(), dependency, r.because))
			}
		}
	}
	return found
}

func (r rule) dependencies(p goPackage) []string {
	if r.direct {
		return p.Imports
	}
	return p.Deps
}

func TestArrowsBetweenRoomsGoDownwards(t *testing.T) {
	packages := listPackages(t)
	require.NotEmpty(t, packages)
	for _, r := range rules {
		for _, violation := range r.violations(packages) {
			t.Error(violation)
		}
	}
}

func TestARuleSeesWhatItForbidsAndNothingElse(t *testing.T) {
	r := rule{rooms: []string{"pkg/a"}, forbids: []string{"example.com/x"}, because: "reason"}
	tests := map[string]struct {
		path       string
		dependency string
		want       []string
	}{
		"the package itself":                 {"pkg/a", "example.com/x", []string{"pkg/a depends on example.com/x: reason"}},
		"a package below, something below":   {"pkg/a/b", "example.com/x/y", []string{"pkg/a/b depends on example.com/x/y: reason"}},
		"another room with a longer name":    {"pkg/ab", "example.com/x", nil},
		"another library with a longer name": {"pkg/a", "example.com/xy", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			packages := []goPackage{{ImportPath: module + test.path, Deps: []string{test.dependency}}}
			require.Equal(t, test.want, r.violations(packages))
		})
	}
}

func TestADirectRuleForgivesLibraries(t *testing.T) {
	r := rule{rooms: []string{"pkg"}, forbids: []string{"flag"}, direct: true}
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
