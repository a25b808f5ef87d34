package house

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the root of the repository, relative to this package.
const root = "../.."

// mainLines is the maximum length of a main.go. All other code belongs in a package with tests.
const mainLines = 30

func TestMainFunctionsAreShort(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	require.NoError(t, err)
	for _, file := range mains {
		require.Less(t, strings.Count(read(t, file), "\n"), mainLines, file)
	}
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
