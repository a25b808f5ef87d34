package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// processesCgroup is for the processes that are in the way of controllers. Those who make clusters inside of containers call it so.
const processesCgroup = "init"

// delegate gives the cgroups below the root of a version 2 tree every controller there is.
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

// delegated looks for those that a kubelet insists on. Without them it would fail only when somebody has waited for its node for
// minutes, and say so in a log.
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
		return fmt.Errorf("cgroups below %s do not get what the kubelet needs, %s: %w", tree, strings.Join(missing, ", "), refused)
	}
	return nil
}

// vacate moves the processes of the root to a cgroup below it. In a container the root that is seen is none: beside processes
// the kernel refuses controllers to other cgroups there. The machine's own root, which alone has no type, may have both.
func (h hierarchy) vacate(tree string) error {
	if _, err := os.Stat(filepath.Join(tree, "cgroup.type")); err != nil {
		return ignoreMissing(err)
	}
	const rounds = 10 // processes start others meanwhile
	for range rounds {
		processes, err := words(tree, "cgroup.procs")
		if err != nil || len(processes) == 0 {
			return err
		}
		if err := h.moveAll(processes, filepath.Join(tree, processesCgroup)); err != nil {
			return err
		}
	}
	return nil // what comes of it is seen when controllers are refused
}

func (h hierarchy) moveAll(processes []string, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as the kernel itself makes them
		return err
	}
	for _, process := range processes {
		err := h.set(filepath.Join(to, "cgroup.procs"), process)
		if err != nil && !errors.Is(err, syscall.ESRCH) { // it has ended
			return fmt.Errorf("process %s is in the way of controllers, and cannot be moved to the cgroup %s: %w", process, to, err)
		}
	}
	return nil
}

func words(elements ...string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(elements...))
	return strings.Fields(string(data)), err
}
