package controlplane

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStartRefusesOptionsItCannotUse(t *testing.T) {
	empty := t.TempDir()
	tests := map[string]struct {
		options Options
		want    string
	}{
		"no name":                    {Options{}, "Options.Name is empty"},
		"a name that is a path":      {Options{Name: "a/b"}, `"a/b": the name must be usable as a file name`},
		"a folder without binaries":  {Options{Name: "x", Binaries: empty}, filepath.Join(empty, "kube-apiserver")},
		"a folder that is no folder": {Options{Name: "x", Dir: "/dev/null/x", Binaries: fakes(t)}, "/dev/null"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := Start(t.Context(), test.options)
			require.ErrorContains(t, err, test.want)
			require.Nil(t, c)
		})
	}
}

func TestAllMissingBinariesAreNamedAtOnce(t *testing.T) {
	err := checkBinaries("/nowhere", Options{ControllerManager: true}.programs()...)
	require.ErrorContains(t, err, "/nowhere/etcd")
	require.ErrorContains(t, err, "/nowhere/kube-apiserver")
	require.ErrorContains(t, err, "/nowhere/kube-controller-manager")
	require.NotContains(t, Options{}.programs(), binaryControllerManager, "needed only when it is to run")
}

func TestAGivenFolderIsMadePrivateAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	got, temporary, err := Options{Name: "x", Dir: dir}.workDir()
	require.NoError(t, err)
	require.Equal(t, dir, got)
	require.False(t, temporary)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestTheFolderOfAnotherControlPlaneIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, etcdDataDir), 0o700))
	_, err := Start(t.Context(), Options{Name: "x", Dir: dir, Binaries: fakes(t)})
	require.EqualError(t, err, `control plane "x": `+dir+" has the data of another control plane: remove it or choose another folder")
}

// fakes is a folder with programs of the right names that do nothing but wait.
func fakes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range (Options{ControllerManager: true}).programs() {
		script(t, dir, name, "exec sleep 300")
	}
	return dir
}
