package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sharedNames are the type names, in lower case, that several packages have with one meaning, and why.
var sharedNames = map[string]string{
	"action":         "the result of a decision function, for the agent and for one BundleDeployment",
	"agent":          "an agent as it is configured, and as the bench simulates it",
	"cluster":        "a Cluster as the API, the screen, the demo and the tests of real clusters have it",
	"conditions":     "the list of conditions; pkg/controllers/internal/result has an alias of the type in pkg/fleetstatus",
	"config":         "the configuration of a package or program",
	"facts":          "the arguments of a decision function",
	"handler":        "the state of a controller, whose methods wrangler calls",
	"hub":            "the hub as it is configured, as it runs, and as users see it",
	"leaderelection": "the same settings, as the agent has them and as its manifest has them",
	"options":        "the arguments of a package's entry point",
	"proxy":          "an HTTP proxy",
	"raw":            "the flags of a program before they are checked",
	"request":        "a ClusterRegistration on the screen, a request in the audit log, a Helm release that is asked for",
	"token":          "a registration token, as stored and as shown",
}

func TestTypeNames(t *testing.T) {
	found := map[string]map[string]bool{}
	for _, file := range sourceFiles(t, "cmd", "pkg", "internal", "charts") {
		if strings.Contains(file, "/generated/") || strings.HasPrefix(filepath.Base(file), "zz_") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, name := range typeNames(tree) {
			name = strings.ToLower(name)
			if found[name] == nil {
				found[name] = map[string]bool{}
			}
			found[name][filepath.Dir(file)] = true
		}
	}
	for name, packages := range found {
		if len(packages) > 1 && sharedNames[name] == "" {
			t.Errorf("type %s is declared in %v: give the new one another name, or add the reason to sharedNames", name, slices.Sorted(maps.Keys(packages)))
		}
	}
}

func typeNames(tree *ast.File) (names []string) {
	for _, declaration := range tree.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range general.Specs {
			if declared, ok := spec.(*ast.TypeSpec); ok {
				names = append(names, declared.Name.Name)
			}
		}
	}
	return names
}
