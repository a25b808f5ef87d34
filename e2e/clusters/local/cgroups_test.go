package local

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// These tests use plain files instead of a cgroup file system, so that both versions are tested on any machine.

func TestCgroupVersion1(t *testing.T) {
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

func TestNoCgroups(t *testing.T) {
	_, err := findHierarchy(t.TempDir())
	require.ErrorContains(t, err, "no cgroups")
}

func TestRemoveCgroups(t *testing.T) {
	root := files(t, map[string]string{
		"memory/cgroup.procs": "", "pids/cgroup.procs": "", "memory/user.slice/cgroup.procs": "",
	})
	h, err := findHierarchy(root)
	require.NoError(t, err)
	for _, dir := range []string{"memory/muster-e2e-hub/kubepods/pod1", "memory/muster-e2e-hub/kubepods/pod2", "pids/muster-e2e-hub"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	require.Equal(t, []string{"muster-e2e-hub"}, h.namesWithPrefix("muster-e2e-"))

	require.NoError(t, h.remove("muster-e2e-hub"))
	require.Empty(t, h.namesWithPrefix("muster-e2e-"))
	require.FileExists(t, filepath.Join(root, "memory/user.slice/cgroup.procs"))
	require.NoError(t, h.remove("muster-e2e-hub"), "it does not exist any more")
}

func TestRemoveCgroupInUse(t *testing.T) {
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

// kernel changes the files of a version 2 tree as the real kernel does when they are written.
type kernel struct {
	root    string
	refuses map[string]error // by the text that is written
}

func (k kernel) set(file, value string) error {
	if err := k.refuses[value]; err != nil {
		return err
	}
	dir, name := filepath.Split(file)
	switch name {
	case "cgroup.subtree_control":
		return k.enable(dir, strings.TrimPrefix(value, "+"))
	case "cgroup.procs":
		return k.move(dir, value)
	}
	return syscall.EINVAL
}

func (k kernel) enable(dir, controller string) error {
	_, err := os.Stat(filepath.Join(dir, "cgroup.type"))
	if processes, _ := words(dir, "cgroup.procs"); err == nil && len(processes) > 0 {
		return syscall.EBUSY
	}
	return k.add(filepath.Join(dir, "cgroup.subtree_control"), controller)
}

func (k kernel) move(to, process string) error {
	all, err := words(k.root, "cgroup.procs")
	if err != nil {
		return err
	}
	left := strings.Join(all, "\n")
	left = strings.TrimSpace(strings.Replace(left+"\n", process+"\n", "", 1))
	if err := os.WriteFile(filepath.Join(k.root, "cgroup.procs"), []byte(left), 0o600); err != nil {
		return err
	}
	return k.add(filepath.Join(to, "cgroup.procs"), process)
}

func (k kernel) add(file, word string) error {
	all, err := words(file)
	if ignoreMissing(err) != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.Join(append(all, word), " ")), 0o600)
}

// tree is a version 2 tree with these files and a fake kernel.
func tree(t *testing.T, content map[string]string, refuses map[string]error) (root string, h hierarchy) {
	t.Helper()
	root = files(t, content)
	h, err := findHierarchy(root)
	require.NoError(t, err)
	require.True(t, h.v2)
	require.Equal(t, []string{root}, h.trees)
	h.set = kernel{root: root, refuses: refuses}.set
	return root, h
}

func TestCgroupVersion2(t *testing.T) {
	root, h := tree(t, map[string]string{"cgroup.controllers": "cpu memory\n", "cgroup.subtree_control": "", "cgroup.procs": "1\n2\n"}, nil)
	require.NoError(t, h.create("muster-e2e-hub"))
	require.DirExists(t, filepath.Join(root, "muster-e2e-hub"))
	require.Equal(t, "cpu memory", content(t, root, "cgroup.subtree_control"))
	require.NoDirExists(t, filepath.Join(root, processesCgroup), "the real root can have processes")
}

func TestCgroupVersion2InAContainer(t *testing.T) {
	root, h := tree(t, map[string]string{
		"cgroup.type": "domain\n", "cgroup.controllers": "memory\n", "cgroup.subtree_control": "", "cgroup.procs": "1\n17\n99\n",
	}, map[string]error{"99": syscall.ESRCH})
	err := h.create("muster-e2e-hub")
	require.ErrorIs(t, err, syscall.EBUSY, "a process that cannot be moved")

	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.procs"), nil, 0o600)) // it has ended
	require.NoError(t, h.create("muster-e2e-hub"))
	require.Equal(t, "1 17", content(t, root, processesCgroup, "cgroup.procs"))
	require.Equal(t, "memory", content(t, root, "cgroup.subtree_control"))
	require.NoError(t, h.create("muster-e2e-member"), "the second cluster")
}

func TestMissingControllers(t *testing.T) {
	for name, row := range map[string]struct {
		refuses map[string]error
		want    string
	}{
		"one that the kubelet needs": {map[string]error{"+memory": syscall.EBUSY}, "the kubelet needs, memory: device or resource busy"},
		"one that it does not need":  {map[string]error{"+rdma": syscall.EBUSY}, ""},
		"a process that cannot be moved": {
			map[string]error{"0": syscall.EINVAL}, "process 0 prevents the delegation of controllers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, h := tree(t, map[string]string{
				"cgroup.type": "domain", "cgroup.controllers": "cpu memory rdma", "cgroup.subtree_control": "", "cgroup.procs": "0",
			}, row.refuses)
			err := h.create("muster-e2e-hub")
			if row.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, row.want)
		})
	}
}
