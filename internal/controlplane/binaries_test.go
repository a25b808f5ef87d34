package controlplane

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBinariesAreTheOnesOfTheEnvironmentWhenSet(t *testing.T) {
	t.Setenv(EnvBinaries, "/opt/kube")
	dir, err := Binaries(t.Context(), io.Discard)
	require.NoError(t, err)
	require.Equal(t, "/opt/kube", dir)
}

func TestBinariesAreBuiltByTheRepositorysScript(t *testing.T) {
	t.Setenv(EnvBinaries, "")
	repository := t.TempDir()
	inside := filepath.Join(repository, "pkg", "deep")
	require.NoError(t, os.MkdirAll(inside, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(repository, "scripts"), 0o700))
	script(t, filepath.Join(repository, "scripts"), "kube", "echo progress >&2; echo /the/folder")
	t.Chdir(inside)

	var progress bytes.Buffer
	dir, err := Binaries(t.Context(), &progress)
	require.NoError(t, err)
	require.Equal(t, "/the/folder", dir)
	require.Equal(t, "progress\n", progress.String())
}

func TestAFailedBuildNamesTheScriptAndShowsItsOutput(t *testing.T) {
	path := script(t, t.TempDir(), "kube", "echo no space left >&2; exit 1")
	var progress bytes.Buffer
	_, err := runBuildScript(t.Context(), path, &progress)
	require.ErrorContains(t, err, path+": exit status 1")
	require.Equal(t, "no space left\n", progress.String())
}

func TestAnInterruptedBuildMayCleanUp(t *testing.T) {
	dir := t.TempDir()
	cleaned := filepath.Join(dir, "cleaned")
	path := script(t, dir, "kube", "trap 'touch "+cleaned+"; exit 130' TERM; echo started >&2; while :; do sleep 0.02; done")
	ctx, cancel := context.WithCancel(t.Context())
	// The first word of progress is the moment to interrupt.
	_, err := runBuildScript(ctx, path, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }))
	require.ErrorContains(t, err, "build the control plane binaries")
	require.FileExists(t, cleaned)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestOutsideTheRepositoryTheErrorSaysWhatToDo(t *testing.T) {
	t.Setenv(EnvBinaries, "")
	t.Chdir(t.TempDir())
	_, err := Binaries(t.Context(), io.Discard)
	require.ErrorContains(t, err, "run inside a clone of the repository, or set KUBEBUILDER_ASSETS")
}
