package house_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// A command in the documentation that nobody runs is wrong sooner or later.
func TestEveryCommandOfTheDocumentationIsRunByCI(t *testing.T) {
	ci, err := os.ReadFile("../../.ci/run")
	require.NoError(t, err)
	commands := 0
	for _, page := range pages(t) {
		for _, block := range shellBlock.FindAllStringSubmatch(read(t, page), -1) {
			for command := range strings.Lines(block[1]) {
				commands++
				run := strings.Contains(string(ci), strings.TrimSpace(command))
				assert.True(t, run, "%s: .ci/run does not run %q", page, command)
			}
		}
	}
	assert.NotZero(t, commands)
}

var link = regexp.MustCompile(`\]\(([^)#:]+)\)`)

func TestEveryLinkOfTheDocumentationLeadsSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			assert.FileExists(t, filepath.Join(filepath.Dir(page), found[1]), "%s", page)
		}
	}
}

var packagePath = regexp.MustCompile("`((?:pkg|internal|charts|cmd|hack)(?:/[\\w.-]+)*)`")

func TestEveryPackageTheDocumentationNamesExists(t *testing.T) {
	for _, page := range pages(t) {
		for _, found := range packagePath.FindAllStringSubmatch(read(t, page), -1) {
			_, err := os.Stat(filepath.Join("../..", found[1]))
			assert.NoError(t, err, "%s", page)
		}
	}
}

// Each direct dependency has its reason on the page of the architecture.
func TestEveryDirectDependencyHasItsReason(t *testing.T) {
	architecture := read(t, "../../docs/architecture.md")
	direct, _, _ := strings.Cut(read(t, "../../go.mod"), ")")
	for _, found := range regexp.MustCompile(`(?m)^\t(\S+) v`).FindAllStringSubmatch(direct, -1) {
		explained := strings.Contains(architecture, "`"+found[1]+"`")
		assert.True(t, explained, "docs/architecture.md gives no reason for %s", found[1])
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	return append(docs, "../../README.md")
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}
