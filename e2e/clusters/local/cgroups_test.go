package local

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files of cgroups are the kernel's; here they are plain ones, so that both versions are seen on any machine.

func TestVersion1HasATreeForEachController(t *testing.T) {
	root := files(t, map[string]string{
		"memory/cgroup.procs": "", "cpuset/cgroup.procs": "", "cpuset/cpuset.cpus": "0-1", "cpuset/cpuset.mems": "0",
		"unified/cgroup.procs": "", "unified/cgroup.controllers": "", "notes.txt": "",
	})
	h, err := findHierarchy(root)
	require.NoError(t, err)
	require.False(t, h.v2)
	require.Equal(t, []string{filepath.Join(root, "cpuset"), filepath.Join(root, "memory"), filepath.Join(root, "unified")}, h.trees)

	require.NoError(t, h.create("muster-e2e-hub"))
	require.DirExists(t, filepath.Join(root, "memory/muster-e2e-hub"))
	require.Equal(t, "0-1", content(t, root, "cpuset/muster-e2e-hub/cpuset.cpus"))
	require.Equal(t, "0", content(t, root, "cpuset/muster-e2e-hub/cpuset.mems"))
	require.NoFileExists(t, filepath.Join(root, "memory/muster-e2e-hub/cpuset.cpus"))
}

func TestAMachineWithoutCgroups(t *testing.T) {
	_, err := findHierarchy(t.TempDir())
	require.ErrorContains(t, err, "no cgroups")
}

func TestOnlyCgroupsOfOursAreFoundAndRemoved(t *testing.T) {
	root := files(t, map[string]string{
		"memory/cgroup.procs": "", "pids/cgroup.procs": "", "memory/user.slice/cgroup.procs": "",
	})
	h, err := findHierarchy(root)
	require.NoError(t, err)
	for _, dir := range []string{"memory/muster-e2e-hub/kubepods/pod1", "memory/muster-e2e-hub/kubepods/pod2", "pids/muster-e2e-hub"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	require.Equal(t, []string{"muster-e2e-hub"}, h.left("muster-e2e-"))

	require.NoError(t, h.remove("muster-e2e-hub"))
	require.Empty(t, h.left("muster-e2e-"))
	require.FileExists(t, filepath.Join(root, "memory/user.slice/cgroup.procs"))
	require.NoError(t, h.remove("muster-e2e-hub"), "what is gone is gone")
}

func TestACgroupThatIsStillUsedIsAnError(t *testing.T) {
	root := files(t, map[string]string{"memory/cgroup.procs": "", "memory/muster-e2e-hub/busy": ""})
	h, err := findHierarchy(root)
	require.NoError(t, err)
	require.ErrorContains(t, h.tryRemove("muster-e2e-hub"), "not empty")
}

func files(t *testing.T, content map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, data := range content {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), fs.ModePerm))
		require.NoError(t, os.WriteFile(path, []byte(data), 0o600))
	}
	return root
}

func content(t *testing.T, elements ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(data)
}
