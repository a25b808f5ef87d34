package binaries

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuild(t *testing.T) {
	script, err := os.ReadFile("../../scripts/build")
	require.NoError(t, err)
	require.Contains(t, string(script), "CGO_ENABLED=0 go build -trimpath -buildvcs=false", "one build more of all libraries otherwise")

	dir := t.TempDir()
	require.NoError(t, Build(t.Context(), dir, "muster"))
	output, err := exec.CommandContext(t.Context(), "go", "version", "-m", filepath.Join(dir, "muster")).CombinedOutput()
	require.NoError(t, err, string(output))
	require.Contains(t, string(output), "-trimpath=true")
	require.Contains(t, string(output), "CGO_ENABLED=0")
}

func TestBuildError(t *testing.T) {
	require.ErrorContains(t, Build(t.Context(), t.TempDir(), "nowhere"), "cmd/nowhere")
}
