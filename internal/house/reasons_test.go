package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	reasonsFile    = "../../pkg/apis/fleet.cattle.io/v1alpha1/reasons.go"
	conditionsFile = "../../pkg/apis/fleet.cattle.io/v1alpha1/conditions.go"
)

var isWord = regexp.MustCompile(`^\w+$`)

func valuesOf(constants map[string]string) []string { return slices.Collect(maps.Values(constants)) }

// Users look up reasons in the documentation.
func TestReasonsAreDocumented(t *testing.T) {
	page := read(t, "../../docs/reasons.md")
	conditions, events := valuesOf(constants(t, conditionsFile, "Condition")), valuesOf(constants(t, reasonsFile, "Event"))
	documented, documentedEvents := map[string]bool{}, map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) \| (?:True|False|Unknown) \| (.*?) ?\|`).FindAllStringSubmatch(page, -1) {
		assert.Contains(t, conditions, row[1], "docs/reasons.md has a condition that does not exist")
		if isWord.MatchString(row[2]) {
			documented[row[2]] = true
		}
	}
	_, table, found := strings.Cut(page, "\n| event | cause |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) \| (\w*) ?\|`).FindAllStringSubmatch(table, -1) {
		documentedEvents[row[1]] = true
		if row[2] != "" {
			documented[row[2]] = true
		}
	}
	assert.ElementsMatch(t, events, slices.Collect(maps.Keys(documentedEvents)), "the events of docs/reasons.md")
	reasons := constants(t, reasonsFile, "Reason")
	require.NotEmpty(t, reasons)
	for name, reason := range reasons {
		assert.True(t, documented[reason], "%s (%q) is not in docs/reasons.md", name, reason)
		delete(documented, reason)
	}
	assert.Empty(t, documented, "docs/reasons.md has reasons that do not exist")
}

func TestReasonsAreUsed(t *testing.T) {
	var code strings.Builder
	for _, file := range sourceFiles(t, "pkg/controllers", "pkg/registration", "pkg/agent", "pkg/admission") {
		code.WriteString(read(t, file))
	}
	used := map[string]bool{}
	for _, match := range regexp.MustCompile(`\bfleet\.((?:Reason|Event)\w+)`).FindAllStringSubmatch(code.String(), -1) {
		used[match[1]] = true
	}
	for _, prefix := range []string{"Reason", "Event"} {
		for name := range constants(t, reasonsFile, prefix) {
			assert.True(t, used[name], "no code sets %s", name)
		}
	}
}

// constants are the string constants of a file whose name has the prefix.
func constants(t *testing.T, file, prefix string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	found := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, prefix) {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			found[spec.Names[0].Name] = value
		}
		return true
	})
	return found
}

// A counter that appears with its first increase shows no increase to Prometheus, so the metric of refusals begins with every reason that a
// refusal can have.
func TestRefusalsAreCountedByEveryReason(t *testing.T) {
	page := read(t, "../../docs/reasons.md")
	var documented []string
	for _, row := range regexp.MustCompile(`(?m)^\| Granted \| False \| (\w+) \|`).FindAllStringSubmatch(page, -1) {
		documented = append(documented, row[1])
	}
	require.NotEmpty(t, documented)

	parsed, err := parser.ParseFile(token.NewFileSet(), "../../pkg/controllers/metrics/metrics.go", nil, 0)
	require.NoError(t, err)
	reasons := constants(t, reasonsFile, "Reason")
	var counted []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && spec.Names[0].Name == "refusalReasons" {
			for _, element := range spec.Values[0].(*ast.CompositeLit).Elts {
				counted = append(counted, reasons[element.(*ast.SelectorExpr).Sel.Name])
			}
		}
		return true
	})
	assert.ElementsMatch(t, documented, counted, "docs/reasons.md, and refusalReasons of the metrics")
}
