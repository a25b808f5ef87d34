package house

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/e2e/docs"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// A command that nothing runs becomes wrong. The end-to-end test of package docs runs the commands in the pages of docs.Pages. The others are lines of
// these pages, or CI runs them.
func TestDocumentationCommandsRunInCI(t *testing.T) {
	ci := read(t, "../../.ci/run")
	inPages := map[string]bool{}
	for _, page := range docs.Pages {
		for _, block := range shellBlock.FindAllStringSubmatch(read(t, filepath.Join("../..", page)), -1) {
			for line := range strings.Lines(block[1]) {
				inPages[line] = true
			}
		}
	}
	commands := 0
	for _, page := range pages(t) {
		if isRun(page) {
			continue
		}
		for _, block := range shellBlock.FindAllStringSubmatch(read(t, page), -1) {
			for command := range strings.Lines(block[1]) {
				commands++
				if !inPages[command] {
					assert.Contains(t, ci, strings.TrimSpace(command), "%s: neither .ci/run nor a page of package docs runs it", page)
				}
			}
		}
	}
	assert.NotZero(t, commands)
}

// The transcript on the first page consists of lines of a golden file; "..." stands for lines that are left out.
func TestReadmeTranscript(t *testing.T) {
	_, block, found := strings.Cut(read(t, "../../README.md"), "```console\n$ muster -n clusters check west ")
	require.True(t, found)
	block, _, _ = strings.Cut(block, "\n```")
	rest := "\n" + read(t, "../check/testdata/broken.txt")
	for _, line := range strings.Split(block, "\n")[1:] {
		if line == "..." {
			continue
		}
		_, after, found := strings.Cut(rest, "\n"+line+"\n")
		require.True(t, found, "muster check does not print this line, or not in this order: %s", line)
		rest = "\n" + after
	}
}

func isRun(page string) bool {
	return slices.ContainsFunc(docs.Pages, func(run string) bool { return filepath.Join("../..", run) == filepath.Clean(page) })
}

// The end-to-end test needs clusters and runs late. This test finds errors in the pages without clusters.
func TestDocumentationPagesThatRun(t *testing.T) {
	for _, page := range docs.Pages {
		text := read(t, filepath.Join("../..", page))
		blocks, err := docs.Parse(page, text)
		require.NoError(t, err)
		shown := slices.DeleteFunc(slices.Clone(blocks), func(b docs.Block) bool { return b.Hidden })
		assert.Len(t, shown, len(shellBlock.FindAllString(text, -1)), "%s: a block that is not at the beginning of its line is not run", page)
		assert.NotEmpty(t, shown, page)
		for _, block := range blocks {
			out, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", block.Script).CombinedOutput()
			assert.NoError(t, err, "%s: %s", block, out)
		}
		for _, block := range shown {
			assertContexts(t, block)
		}
	}
}

// assertContexts checks that each kubectl and helm command names its context. Without a context, a command would use the current one of the reader.
func assertContexts(t *testing.T, block docs.Block) {
	t.Helper()
	for line := range strings.Lines(block.Script) {
		if strings.Contains(line, "kubectl ") {
			assert.Contains(t, line, "--context ", "%s: the command names no context", block)
		}
		if strings.Contains(line, "helm ") {
			assert.Contains(t, line, "--kube-context ", "%s: the command names no context", block)
		}
	}
}

// link matches a link within the repository: its file and its section, both optional.
var link = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]+))?\)`)

func TestDocumentationLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			target := page
			if found[1] != "" {
				target = filepath.Join(filepath.Dir(page), found[1])
			}
			if assert.FileExists(t, target, "%s", page) && found[2] != "" {
				assert.Contains(t, sections(read(t, target)), found[2], "%s: %s has no such section", page, target)
			}
		}
	}
}

var (
	sectionHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInAnchor    = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// sections are the anchors of the headings of a page.
func sections(text string) (anchors []string) {
	for _, found := range sectionHeading.FindAllStringSubmatch(text, -1) {
		anchors = append(anchors, strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-"))
	}
	return anchors
}

var packagePath = regexp.MustCompile("`((?:pkg|internal|charts|cmd|hack)(?:/[\\w.-]+)*)`")

func TestDocumentationPackages(t *testing.T) {
	for _, page := range pages(t) {
		for _, found := range packagePath.FindAllStringSubmatch(read(t, page), -1) {
			_, err := os.Stat(filepath.Join("../..", found[1]))
			assert.NoError(t, err, "%s", page)
		}
	}
}

var (
	namedTest    = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
	declaredTest = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w+)\(`)
)

func TestTestsInTheDocumentationExist(t *testing.T) {
	declared := map[string]bool{}
	for _, file := range testFiles(t) {
		for _, found := range declaredTest.FindAllStringSubmatch(read(t, file), -1) {
			declared[found[1]] = true
		}
	}
	named := 0
	for _, page := range pages(t) {
		for _, test := range namedTest.FindAllString(read(t, page), -1) {
			named++
			assert.True(t, declared[test], "%s: there is no %s", page, test)
		}
	}
	assert.NotZero(t, named)
}

// testFiles returns the files with tests of all modules of the repository.
func testFiles(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == filepath.Join(root, "bin") || entry.Name() == ".git"):
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			files = append(files, path)
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// docs/architecture-reference.md gives the reason for each direct dependency, and for no other.
func TestDirectDependenciesHaveReasons(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "../../docs/architecture-reference.md"), "## Direct dependencies")
	table := regexp.MustCompile(`(?m)^\|.*$`).FindAllString(section, -1)
	explained := regexp.MustCompile("`([^` ]+\\.[^` ]+/[^` ]+)`").FindAllStringSubmatch(strings.Join(table, "\n"), -1)
	require.NotEmpty(t, explained)
	reasons := map[string]bool{}
	for _, found := range explained {
		reasons[found[1]] = true
	}
	for _, found := range directDependency.FindAllStringSubmatch(read(t, "../../go.mod"), -1) {
		assert.True(t, reasons[found[1]], "docs/architecture-reference.md gives no reason for %s", found[1])
		delete(reasons, found[1])
	}
	assert.Empty(t, reasons, "docs/architecture-reference.md has reasons for modules that are not direct dependencies")
}

var directDependency = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`)

func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	return append(docs, "../../README.md", "../../CONTRIBUTING.md", "../../CHANGELOG.md", "../../SECURITY.md")
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}
