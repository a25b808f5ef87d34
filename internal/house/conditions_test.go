package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const kindsDirectory = "pkg/apis/fleet.cattle.io/v1alpha1/"

var conditionRow = regexp.MustCompile(`(?m)^\| (\w+) \| (?:True|False|Unknown) \|`)

// conditionsOf returns the condition types of a kind, from its section in docs/reasons.md.
func conditionsOf(t *testing.T, kind string) []string {
	t.Helper()
	_, section, found := strings.Cut(read(t, "../../docs/reasons.md"), "\n## "+kind+"\n")
	require.True(t, found, kind)
	section, _, _ = strings.Cut(section, "\n## ")
	types := map[string]bool{}
	for _, row := range conditionRow.FindAllStringSubmatch(section, -1) {
		types[row[1]] = true
	}
	delete(types, "MemberLeft") // an event of a deleted Cluster
	return slices.Sorted(maps.Keys(types))
}

func TestConditionsAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, kind := range []string{"Cluster", "ClusterRegistration", "Bundle", "ClusterRegistrationToken", "BundleDeployment"} {
		for _, condition := range conditionsOf(t, kind) {
			documented[condition] = true
		}
	}
	declared := slices.Sorted(maps.Values(constants(t, filepath.Join(root, kindsDirectory, "conditions.go"), "Condition")))
	assert.Equal(t, slices.Sorted(maps.Keys(documented)), declared, "docs/reasons.md, and conditions.go")
}

// Each list of conditions has all conditions of its kind, except those that this test names with the reason.
func TestListsOfConditionsAreComplete(t *testing.T) {
	for _, list := range []struct {
		kind, file, declaration string
		leftOut                 map[string]string
	}{
		{"Cluster", "pkg/controllers/metrics/states.go", "counted", map[string]string{
			"Processed": "no alert and no panel selects it", "Reconciled": "no alert and no panel selects it",
		}},
		{"Cluster", "internal/view/view.go", "clusterState", map[string]string{"Reconciled": "settings shows it"}},
		{"Cluster", "pkg/controllers/cluster/reconcile.go", "OrderConditions", map[string]string{"ReleasesManaged": "it comes last"}},
		{"ClusterRegistrationToken", "internal/view/view.go", "tokenState", map[string]string{
			"LabelsLimited": "the token registers clusters without it", "PoliciesInForce": "the token registers clusters without it",
		}},
		{"ClusterRegistrationToken", "pkg/controllers/clusterregistrationtoken/token.go", "OrderConditions", map[string]string{"LabelsLimited": "it comes last"}},
	} {
		all := slices.Concat(conditionsIn(t, list.file, list.declaration), slices.Collect(maps.Keys(list.leftOut)))
		assert.ElementsMatch(t, conditionsOf(t, list.kind), all, "%s of %s, and the exceptions of this test: decide about each condition of a %s",
			list.declaration, list.file, list.kind)
	}
}

// The comment of each field with conditions names all of them.
func TestCommentsNameAllConditions(t *testing.T) {
	for kind, file := range map[string]string{
		"Cluster": "cluster_types.go", "ClusterRegistration": "clusterregistration_types.go", "ClusterRegistrationToken": "clusterregistrationtoken_types.go",
	} {
		named := map[string]bool{}
		for _, word := range regexp.MustCompile(`\w+`).FindAllString(commentOf(t, kindsDirectory+file, kind+"Status", "Conditions"), -1) {
			named[word] = true
		}
		for _, condition := range conditionsOf(t, kind) {
			assert.True(t, named[condition], "%s: the comment of the conditions does not name %s", file, condition)
		}
	}
}

// conditionsIn returns the types whose constants a function, a variable or a call with this name uses, each once.
func conditionsIn(t *testing.T, file, name string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
	require.NoError(t, err)
	values, used := constants(t, filepath.Join(root, kindsDirectory, "conditions.go"), "Condition"), map[string]bool{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if isNamed(n, name) {
			ast.Inspect(n, func(inner ast.Node) bool {
				if selector, ok := inner.(*ast.SelectorExpr); ok && values[selector.Sel.Name] != "" {
					used[values[selector.Sel.Name]] = true
				}
				return true
			})
		}
		return true
	})
	require.NotEmpty(t, used, "%s: %s has no conditions", file, name)
	return slices.Sorted(maps.Keys(used))
}

func isNamed(n ast.Node, name string) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return n.Name.Name == name
	case *ast.ValueSpec:
		return n.Names[0].Name == name
	case *ast.CallExpr:
		selector, ok := n.Fun.(*ast.SelectorExpr)
		return ok && selector.Sel.Name == name
	}
	return false
}

// commentOf returns the comment of a field of a type.
func commentOf(t *testing.T, file, typeName, field string) (comment string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ParseComments)
	require.NoError(t, err)
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != typeName {
			return true
		}
		for _, f := range spec.Type.(*ast.StructType).Fields.List {
			if len(f.Names) == 1 && f.Names[0].Name == field {
				comment = f.Doc.Text()
			}
		}
		return false
	})
	require.NotEmpty(t, comment, "%s.%s", typeName, field)
	return comment
}
