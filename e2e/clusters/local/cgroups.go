package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const cgroupMount = "/sys/fs/cgroup"

// hierarchy is where the cgroups of this machine are: one tree with all controllers in it (version 2), or one tree for each
// (version 1, also where a version 2 tree without controllers is beside them).
type hierarchy struct {
	trees []string
	v2    bool
	set   func(file, value string) error // as the kernel takes it
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
		return hierarchy{}, fmt.Errorf("no cgroups below %s: mount them, or run where they are", mount)
	}
	for i := range trees {
		trees[i] = filepath.Dir(trees[i])
	}
	return hierarchy{trees: trees, set: set}, nil
}

func set(file, value string) error { return os.WriteFile(file, []byte(value), 0) }

// create makes the root cgroup of a kubelet, which refuses to start without it.
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
	if err := os.MkdirAll(filepath.Join(tree, name), 0o755); err != nil { //nolint:gosec // as the kernel itself makes them
		return err
	}
	if h.v2 {
		return nil // the kubelet passes on what it has got to the cgroups of pods
	}
	return h.inherit(tree, name)
}

// inherit fills in what a new version 1 cgroup of CPUs begins without. Empty, no process can enter it.
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

// left are the names of all cgroups that begin so and exist in any tree.
func (h hierarchy) left(prefix string) []string {
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

// removalDeadline bounds how long the kernel may take to let go of a cgroup whose processes are dead.
const removalDeadline = 20 * time.Second

// remove removes the given cgroup from every tree, with all that is below it. One that is not there is fine.
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

// removeTree removes the innermost cgroups first: the kernel removes no other. Their files vanish with them.
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
