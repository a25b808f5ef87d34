package house

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// workflow is the part of a workflow of GitHub that its tests read.
type workflow struct {
	Permissions map[string]string
	Env         map[string]string
	Jobs        map[string]struct {
		Permissions map[string]string
		Timeout     int `json:"timeout-minutes"`
		Steps       []struct{ Name, Uses, Run string }
	}
}

func workflows(t *testing.T) map[string]workflow {
	t.Helper()
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]workflow{}
	for _, file := range files {
		var w workflow
		require.NoError(t, yaml.Unmarshal([]byte(read(t, file)), &w), file)
		require.NotEmpty(t, w.Jobs, file)
		all[filepath.Base(file)] = w
	}
	return all
}

// A workflow is first run by GitHub, long after the change.
func TestWorkflows(t *testing.T) {
	toolchain := workflows(t)["release.yml"].Env["GOTOOLCHAIN"]
	require.NotEmpty(t, toolchain)
	for file, w := range workflows(t) {
		assert.NotNil(t, w.Permissions, "%s: a job has only the permissions that it names", file)
		assert.Empty(t, w.Permissions, file)
		assert.Equal(t, toolchain, w.Env["GOTOOLCHAIN"], file)
		for name, job := range w.Jobs {
			assert.NotEmpty(t, job.Permissions, "%s: %s", file, name)
			assert.Positive(t, job.Timeout, "%s: %s", file, name)
			for _, step := range job.Steps {
				where := file + ": " + name + ": " + step.Name
				assert.Empty(t, step.Uses, "%s: an action is code of others", where)
				assert.NotContains(t, step.Run, "${{", "%s: an expression in a script can be a command of the author of a pull request", where)
				out, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", step.Run).CombinedOutput()
				assert.NoError(t, err, "%s: %s", where, out)
				for line := range strings.Lines(step.Run) {
					assertScriptsExist(t, where, line)
				}
			}
		}
	}
}

func assertScriptsExist(t *testing.T, where, line string) {
	t.Helper()
	words := strings.Fields(line)
	for i, word := range words {
		if word == "make" || strings.HasPrefix(word, "scripts/") || strings.HasPrefix(word, ".ci/") {
			_, err := commandExists(nil, words[i:])
			assert.NoError(t, err, where)
		}
	}
}

// Each pull request runs .ci/run. Each night runs what .ci/run leaves out.
func TestPullRequestsAreTested(t *testing.T) {
	text := read(t, "../../.github/workflows/pr.yml")
	for _, part := range []string{"\n  pull_request:\n", "\n    branches: [main]\n", "\n  schedule:\n", " .ci/run\n", " make test-all\n", " make e2e\n", " make test-versions ARGS=all\n"} {
		assert.Contains(t, text, part)
	}
}
