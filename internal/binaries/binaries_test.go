package binaries

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestBuild(t *testing.T) {
	sample.Long(t)
	script, err := os.ReadFile("../../scripts/build")
	require.NoError(t, err)
	require.Contains(t, string(script), "CGO_ENABLED=0 go build -trimpath -buildvcs=false", "one build more of all libraries otherwise")

	var programs []os.FileInfo
	var dir string
	for range 2 {
		built, err := buildOnce(t.Context(), []string{"muster"})
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(built)) })
		require.NoError(t, err)
		dir = built
		info, err := os.Stat(filepath.Join(dir, "muster"))
		require.NoError(t, err)
		programs = append(programs, info)
	}
	require.True(t, os.SameFile(programs[0], programs[1]), "it was not linked again")
	output, err := exec.CommandContext(t.Context(), "go", "version", "-m", filepath.Join(dir, "muster")).CombinedOutput()
	require.NoError(t, err, string(output))
	require.Contains(t, string(output), "-trimpath=true")
	require.Contains(t, string(output), "CGO_ENABLED=0")
}

func TestBuildError(t *testing.T) {
	require.ErrorContains(t, Build(t.Context(), t.TempDir(), "nowhere"), "cmd/nowhere")
}
