package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scriptedPath matches a path such as ./pkg/{hub,agent}/..., and what follows if the path ends in a variable or in a pattern of the shell.
var scriptedPath = regexp.MustCompile(`\./((?:bench|charts|cmd|e2e|hack|internal|pkg)(?:/(?:[\w.-]+|\{[\w./,-]+\}))*)(/?)`)

// go test fails if a package does not exist, but scripts of which CI runs only a part may name one.
func TestPackagesInScriptsExist(t *testing.T) {
	files := []string{"../../.ci/run", "../../Makefile"}
	for _, pattern := range []string{"../../scripts/*", "../../.github/workflows/*"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	named := 0
	for _, file := range files {
		for _, path := range packagesOf(read(t, file)) {
			named++
			assert.True(t, isPackage(t, path), "%s: %s is no Go package", file, path)
		}
	}
	assert.Greater(t, named, 50)
}

func TestPackagesOfScripts(t *testing.T) {
	assert.Equal(t, []string{"pkg/admission", "internal/integration/imports", "internal/integration/bundles", "pkg/agent/...", "pkg/hub/...", "pkg/agent/deploy", "pkg/hub"},
		packagesOf("(./pkg/admission ./internal/integration/{imports,bundles} ./pkg/{agent,hub}/... ./pkg/{agent/deploy,hub}) ./cmd/$1 ${p#./cmd/} ./bin/x"))
	for path, exists := range map[string]bool{
		"internal/house": true, "internal/house/...": true, "cmd/...": true, "hack/packaging.sh": true, "cmd": false, "internal/nothing": false, "internal/nothing/...": false,
	} {
		assert.Equal(t, exists, isPackage(t, path), path)
	}
}

// packagesOf returns the paths in a script, with their braces expanded. Paths that end in a variable or a pattern are left out.
func packagesOf(script string) (paths []string) {
	for _, found := range scriptedPath.FindAllStringSubmatch(script, -1) {
		if found[2] == "" {
			paths = append(paths, expandBraces(found[1])...)
		}
	}
	return paths
}

func expandBraces(path string) (expanded []string) {
	before, rest, found := strings.Cut(path, "{")
	if !found {
		return []string{path}
	}
	choices, after, _ := strings.Cut(rest, "}")
	for choice := range strings.SplitSeq(choices, ",") {
		expanded = append(expanded, expandBraces(before+choice+after)...)
	}
	return expanded
}

// isPackage returns whether the path is a directory with Go files, a directory that may have some below it if it ends in "...", or a file.
func isPackage(t *testing.T, path string) bool {
	t.Helper()
	directory, isPattern := strings.CutSuffix(path, "/...")
	info, err := os.Stat(filepath.Join("../..", directory))
	if err != nil || isPattern || !info.IsDir() {
		return err == nil
	}
	sources, err := filepath.Glob(filepath.Join("../..", directory, "*.go"))
	require.NoError(t, err)
	return len(sources) > 0
}
