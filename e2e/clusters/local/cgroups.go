package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const cgroupMount = "/sys/fs/cgroup"

// hierarchy has the cgroup trees of this machine: one tree with all controllers (version 2), or one tree for each controller (version 1,
// possibly with an additional version 2 tree without controllers).
type hierarchy struct {
	trees []string
	v2    bool
	set   func(file, value string) error // writes a cgroup file
}

func findHierarchy(mount string) (hierarchy, error) {
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		return hierarchy{trees: []string{mount}, v2: true, set: set}, nil
	}
	trees, err := filepath.Glob(filepath.Join(mount, "*", "cgroup.procs"))
	if err != nil {
		return hierarchy{}, err
	}
	if len(trees) == 0 {
		return hierarchy{}, fmt.Errorf("no cgroups below %s: mount the cgroup file systems", mount)
	}
	for i := range trees {
		trees[i] = filepath.Dir(trees[i])
	}
	return hierarchy{trees: trees, set: set}, nil
}

func set(file, value string) error { return os.WriteFile(file, []byte(value), 0) }

// create creates the root cgroup of a kubelet, which does not start without it.
func (h hierarchy) create(name string) error {
	for _, tree := range h.trees {
		if err := h.createIn(tree, name); err != nil {
			return fmt.Errorf("cgroup %s: %w", filepath.Join(tree, name), err)
		}
	}
	return nil
}

func (h hierarchy) createIn(tree, name string) error {
	if h.v2 {
		if err := h.delegate(tree); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(tree, name), 0o755); err != nil { //nolint:gosec // the mode of the kernel's own cgroups
		return err
	}
	if h.v2 {
		return nil // the kubelet enables the controllers of this cgroup for the cgroups of Pods
	}
	return h.inherit(tree, name)
}

// inherit copies the settings that are empty in a new version 1 cpuset cgroup. No process can enter it while they are empty.
func (h hierarchy) inherit(tree, name string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		data, err := os.ReadFile(filepath.Join(tree, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := h.set(filepath.Join(tree, name, file), string(data)); err != nil {
			return err
		}
	}
	return nil
}

// namesWithPrefix returns the names of the cgroups with a prefix that exist in any tree.
func (h hierarchy) namesWithPrefix(prefix string) []string {
	var all []string
	for _, tree := range h.trees {
		found, _ := filepath.Glob(filepath.Join(tree, prefix+"*"))
		for _, path := range found {
			all = append(all, filepath.Base(path))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// removalDeadline limits the time that the kernel takes to release a cgroup whose processes have ended.
const removalDeadline = 20 * time.Second

// remove removes a cgroup and all cgroups below it from every tree. A cgroup that does not exist is not an error.
func (h hierarchy) remove(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removalDeadline)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		last = h.tryRemove(name)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("remove the cgroups %s: %w", name, errors.Join(err, last))
	}
	return nil
}

func (h hierarchy) tryRemove(name string) error {
	var all []error
	for _, tree := range h.trees {
		all = append(all, removeTree(filepath.Join(tree, name)))
	}
	return errors.Join(all...)
}

// removeTree removes the innermost cgroups first, because the kernel removes no others. It removes the files in them itself.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return ignoreMissing(err)
	})
	for _, dir := range slices.Backward(dirs) {
		err = errors.Join(err, ignoreMissing(os.Remove(dir)))
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// processesCgroup receives the processes that prevent the delegation of controllers. Other programs that run clusters in containers, such as
// kind, use the same name.
const processesCgroup = "init"

// delegate enables all controllers for the cgroups below the root of a version 2 tree.
func (h hierarchy) delegate(tree string) error {
	if err := h.vacate(tree); err != nil {
		return err
	}
	available, err := words(tree, "cgroup.controllers")
	if err != nil {
		return err
	}
	var refused error
	for _, controller := range available {
		refused = errors.Join(refused, h.set(filepath.Join(tree, "cgroup.subtree_control"), "+"+controller))
	}
	return h.delegated(tree, available, refused)
}

// delegated checks the controllers that a kubelet requires. Without the check, the error would be in a log, after minutes of waiting for the
// node.
func (h hierarchy) delegated(tree string, available []string, refused error) error {
	given, err := words(tree, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	var missing []string
	for _, controller := range []string{"cpu", "cpuset", "memory", "hugetlb", "pids"} {
		if slices.Contains(available, controller) && !slices.Contains(given, controller) {
			missing = append(missing, controller)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("cgroups below %s do not have the controllers that the kubelet needs, %s: %w", tree, strings.Join(missing, ", "), refused)
	}
	return nil
}

// vacate moves the processes of the root to a cgroup below it. The visible root of a container is an ordinary cgroup, which cannot have
// both processes and cgroups with controllers. Only the real root can; it has no file cgroup.type.
func (h hierarchy) vacate(tree string) error {
	if _, err := os.Stat(filepath.Join(tree, "cgroup.type")); err != nil {
		return ignoreMissing(err)
	}
	const rounds = 10 // processes start others in the meantime
	for range rounds {
		processes, err := words(tree, "cgroup.procs")
		if err != nil || len(processes) == 0 {
			return err
		}
		if err := h.moveAll(processes, filepath.Join(tree, processesCgroup)); err != nil {
			return err
		}
	}
	return nil // if processes are left, enabling controllers fails
}

func (h hierarchy) moveAll(processes []string, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the mode of the kernel's own cgroups
		return err
	}
	for _, process := range processes {
		err := h.set(filepath.Join(to, "cgroup.procs"), process)
		if err != nil && !errors.Is(err, syscall.ESRCH) { // it has ended
			return fmt.Errorf("process %s prevents the delegation of controllers and cannot be moved to the cgroup %s: %w", process, to, err)
		}
	}
	return nil
}

func words(elements ...string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(elements...))
	return strings.Fields(string(data)), err
}
