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

func TestBinaries(t *testing.T) {
	t.Setenv(EnvBinaries, "/opt/kube")
	dir, err := Binaries(t.Context(), io.Discard)
	require.NoError(t, err)
	require.Equal(t, "/opt/kube", dir)

	t.Setenv(EnvBinaries, "")
	t.Run("outside of a clone: an error with the remedy", func(t *testing.T) {
		t.Chdir(t.TempDir())
		_, err := Binaries(t.Context(), io.Discard)
		require.ErrorContains(t, err, "run inside a clone of the repository, or set KUBEBUILDER_ASSETS")
	})
	t.Run("below the root of a clone: built by scripts/kube", func(t *testing.T) {
		inClone(t, "echo progress >&2; echo /the/directory")
		var progress bytes.Buffer
		dir, err := Binaries(t.Context(), &progress)
		require.NoError(t, err)
		require.Equal(t, "/the/directory", dir)
		require.Equal(t, "progress\n", progress.String())
	})
	t.Run("failed build: names the script and shows its output", func(t *testing.T) {
		root := inClone(t, "echo no space left >&2; exit 1")
		var progress bytes.Buffer
		_, err := Binaries(t.Context(), &progress)
		require.ErrorContains(t, err, filepath.Join(root, buildScript)+": exit status 1")
		require.Equal(t, "no space left\n", progress.String())
	})
	t.Run("interrupted build: the script can clean up", func(t *testing.T) {
		cleaned := filepath.Join(t.TempDir(), "cleaned")
		inClone(t, "trap 'touch "+cleaned+"; exit 130' TERM; echo started >&2; while :; do sleep 0.02; done")
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Binaries(ctx, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }))
		require.Error(t, err)
		require.FileExists(t, cleaned)
	})
}

// inClone changes into a subdirectory of a clone whose scripts/kube is the given shell script.
func inClone(t *testing.T, kube string) (root string) {
	t.Helper()
	root = t.TempDir()
	inside := filepath.Join(root, "pkg", "deep")
	require.NoError(t, os.MkdirAll(inside, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(root, "scripts"), 0o700))
	script(t, filepath.Join(root, "scripts"), "kube", kube)
	t.Chdir(inside)
	return root
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestSharedOptions(t *testing.T) {
	t.Setenv(EnvMemberBinaries, "/old")
	require.Equal(t, Options{Name: "member", Binaries: "/old"}, sharedOptions("member"))
	require.Equal(t, Options{Name: "hub"}, sharedOptions("hub"))
}
