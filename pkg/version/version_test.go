package version_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/pkg/version"
)

func TestABuildThatSetsNothingIsADevelopmentBuild(t *testing.T) {
	require.Equal(t, "dev", version.Version)
}

// A misspelt name in -ldflags -X is ignored in silence, and every release would call itself "dev".
func TestTheLinkerFlagOfTheBuildScriptReachesTheVariable(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", program,
		"-ldflags", "-X github.com/muster-fleet/muster/pkg/version.Version=v1.2.3", "./testdata/print")
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
	output, err = exec.Command(program).Output()
	require.NoError(t, err)
	require.Equal(t, "v1.2.3\n", string(output))
}
