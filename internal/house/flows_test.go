package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// inLinkedFile matches names before the file that has them: `evaluate` and `grant` in [a link](../pkg/x/y.go).
	inLinkedFile = regexp.MustCompile("((?:`[A-Za-z]+`(?:, then |, | and )?)+)\\s+in\\s+\\[[^]]+\\]\\((\\.\\./[^)]+\\.go)\\)")
	// inNamedFile matches a name before a file of the package of the flow: `updateStatus` in `bundle.go`.
	inNamedFile = regexp.MustCompile("((?:`[A-Za-z]+`)+) in `([a-z]+\\.go)`")
	// inPackage matches a name in parentheses, which the package of the flow has: (`hasAgentOrAnswer`).
	inPackage = regexp.MustCompile("\\(((?:`[A-Za-z]+`(?:, `[a-z]+\\.go`)*))\\)")
	// tableRow matches a row of a table whose last column is the file, and whose column before that begins with the functions.
	tableRow = regexp.MustCompile("(?m)^\\|.*\\| ((?:`[A-Za-z]+`(?:, )?)+)[^|]*\\| \\[[^]]+\\]\\((\\.\\./[^)]+\\.go)\\) \\|$")

	flowTitle  = regexp.MustCompile(`(?m)^### `)
	sourceLink = regexp.MustCompile(`\]\(\.\./([^)]+\.go)\)`)
	identifier = regexp.MustCompile("`([A-Za-z]+)`")
)

// A reader follows the flows of docs/architecture.md by the functions that they name.
func TestFlowsNameFunctionsThatExist(t *testing.T) {
	_, text, _ := strings.Cut(read(t, "../../docs/architecture.md"), "\n## Flows\n")
	text, _, _ = strings.Cut(text, "\n## ")
	names := 0
	check := func(mentioned string, declared map[string]bool, where string) {
		for _, name := range identifier.FindAllStringSubmatch(mentioned, -1) {
			names++
			assert.True(t, declared[name[1]], "docs/architecture.md names %s, which %s does not declare", name[1], where)
		}
	}
	for _, flow := range flowTitle.Split(text, -1)[1:] {
		for _, found := range append(inLinkedFile.FindAllStringSubmatch(flow, -1), tableRow.FindAllStringSubmatch(flow, -1)...) {
			check(found[1], declarationsIn(t, filepath.Join("../../docs", found[2])), found[2])
		}
		link := sourceLink.FindStringSubmatch(flow)
		if link == nil {
			continue
		}
		folder := filepath.Join("../..", filepath.Dir(link[1]))
		for _, found := range inNamedFile.FindAllStringSubmatch(flow, -1) {
			check(found[1], declarationsIn(t, filepath.Join(folder, found[2])), found[2])
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		declared := declarationsIn(t, files...)
		for _, found := range inPackage.FindAllStringSubmatch(flow, -1) {
			check(found[1], declared, folder)
		}
	}
	assert.Greater(t, names, 50, "the test no longer finds the names")
}

// declarationsIn returns the names of the functions, methods, types, constants and variables of files.
func declarationsIn(t *testing.T, files ...string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, declaration := range tree.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				names[d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						names[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, name := range s.Names {
							names[name.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}
