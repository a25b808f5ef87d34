package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCopyingTakesPlainFilesOnly(t *testing.T) {
	from := files(t, map[string]string{"kubelet.log": "a", "default_pod_1/container/0.log": "b"})
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(from, "link.log")))
	to := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, copyFiles(from, to))
	require.Equal(t, "a", content(t, to, "kubelet.log"))
	require.Equal(t, "b", content(t, to, "default_pod_1/container/0.log"))
	require.NoFileExists(t, filepath.Join(to, "link.log"))
}

func TestALogFolderThatWasNeverMadeIsNoError(t *testing.T) {
	require.NoError(t, copyFiles(filepath.Join(t.TempDir(), "missing"), t.TempDir()))
}
