package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// CI succeeds even if a test was skipped; only the summary of scripts/skipped shows it.
func TestSkippedTestsAreReported(t *testing.T) {
	for file, content := range map[string]string{
		"test.json": `{"Time":"2026-11-22T12:11:29Z","Action":"run","Package":"m/p","Test":"TestA"}
{"Time":"2026-11-22T12:11:29Z","Action":"output","Package":"m/p","Test":"TestA","Output":"    a_test.go:3: no \"x\" here: apt-get\n"}
{"Time":"2026-11-22T12:11:29Z","Action":"output","Package":"m/p","Test":"TestB","Output":"    a_test.go:4: of another\n"}
{"Time":"2026-11-22T12:11:29Z","Action":"output","Package":"m/p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Time":"2026-11-22T12:11:29Z","Action":"skip","Package":"m/p","Test":"TestA","Elapsed":0}
{"Time":"2026-11-22T12:11:29Z","Action":"pass","Package":"m/p","Test":"TestB","Elapsed":0}
{"Time":"2026-11-22T12:11:29Z","Action":"skip","Package":"m/no-tests","Elapsed":0}
`,
		"suite.log": `=== RUN   TestA
    a_test.go:3: no "x" here: apt-get
--- SKIP: TestA (0.00s)
=== RUN   TestB
    a_test.go:4: of another
--- PASS: TestB (0.00s)
`,
	} {
		t.Run(file, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), file)
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			said, err := exec.CommandContext(t.Context(), "../../scripts/skipped", path, filepath.Join(t.TempDir(), "missing.log")).CombinedOutput()
			require.NoError(t, err, string(said))
			assert.Regexp(t, `^(m/p )?TestA: no "x" here: apt-get\n$`, string(said))
		})
	}
}

var (
	startsAPIServer = regexp.MustCompile(`\b(?:controlplane\.(?:Shared|Clean|Borrow|Own|Start)|testenv\.(?:SharedCluster|BorrowedCluster|OwnCluster|Clusters|NewStage|EmptyStage|ParallelStage))\(`)
	testFunction    = regexp.MustCompile(`(?m)^func Test[A-Z]\w*\(t \*testing\.T\)`)
)

// Files with tests that start API servers say so in their name, except in directories where all tests do. Other files of a package may
// have functions that start them for such tests.
func TestNamesOfIntegrationTests(t *testing.T) {
	all := []string{"internal/integration/", "internal/lifetime/", "internal/packaging/", "internal/controlplane/"}
	named := 0
	for _, file := range testFiles(t) {
		path := strings.TrimPrefix(filepath.ToSlash(file), root+"/")
		text := read(t, file)
		if slices.ContainsFunc(all, func(directory string) bool { return strings.HasPrefix(path, directory) }) ||
			!testFunction.MatchString(text) || !startsAPIServer.MatchString(text) {
			continue
		}
		named++
		assert.True(t, strings.HasSuffix(path, "_integration_test.go"), "%s starts API servers: name it _integration_test.go", path)
	}
	assert.NotZero(t, named)
}
