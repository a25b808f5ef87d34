package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the root of the repository, relative to this package.
const root = "../.."

// mainLines is the maximum length of a main.go: everything else belongs into a package with tests.
const mainLines = 30

func TestOnlyMainEndsTheProgram(t *testing.T) {
	for _, file := range sourceFiles(t, "pkg", "internal", "charts") {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, violation := range endings(t, file, source) {
			t.Errorf("%s: return an error instead: another program may embed this code", violation)
		}
	}
}

func TestEndings(t *testing.T) {
	tests := map[string]struct {
		call string
		want int
	}{
		"the standard log":          {`log.Fatal("x")`, 1},
		"with a format":             {`log.Fatalf("x")`, 1},
		"logrus":                    {`logrus.Fatalln("x")`, 1},
		"a logger with fields":      {`logrus.WithField("a", "b").Fatal("x")`, 1},
		"an exit":                   {`os.Exit(1)`, 1},
		"an exit through logrus":    {`logrus.Exit(1)`, 1},
		"the exit hidden in a func": {`func() { os.Exit(1) }()`, 1},
		"a test that fails":         {`t.Fatal("x")`, 0},
		"an error that is logged":   {`logrus.Error("x")`, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			require.Len(t, endings(t, "x.go", []byte("package x\nfunc f() { "+test.call+" }")), test.want)
		})
	}
}

func TestMainFunctionsAreShort(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	require.NoError(t, err)
	for _, file := range mains {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Less(t, strings.Count(string(source), "\n"), mainLines, file)
	}
}

// endings finds the calls that end the program, by their names: looking up their types would need a compilation.
func endings(t *testing.T, file string, source []byte) []string {
	t.Helper()
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	require.NoError(t, err)

	var found []string
	ast.Inspect(tree, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		if selector, ok := call.Fun.(*ast.SelectorExpr); ok && ends(selector) {
			found = append(found, fmt.Sprintf("%s calls %s", files.Position(call.Pos()), selector.Sel.Name))
		}
		return true
	})
	return found
}

func ends(selector *ast.SelectorExpr) bool {
	receiver := ""
	if identifier, ok := selector.X.(*ast.Ident); ok {
		receiver = identifier.Name
	}
	if selector.Sel.Name == "Exit" {
		return receiver == "os" || receiver == "logrus"
	}
	// t is a test, whose Fatal ends that test only.
	return strings.HasPrefix(selector.Sel.Name, "Fatal") && receiver != "t"
}

// sourceFiles are the Go files below some directories that are not tests.
func sourceFiles(t *testing.T, dirs ...string) []string {
	t.Helper()
	var files []string
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == "codegen"):
				return fs.SkipDir
			case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
				files = append(files, path)
			}
			return nil
		})
		require.NoError(t, err)
	}
	return files
}
