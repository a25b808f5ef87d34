package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/e2e/clusters/command"
	"github.com/muster-fleet/muster/internal/await"
)

// lanes is the number of processes of this machine that can have clusters at the same time.
const lanes = 2

// lane identifies the resources of one process with clusters: a network, cgroups and addresses, with fixed names that no other process
// uses.
type lane int

func (l lane) name() string {
	if l == 0 {
		return "muster-e2e"
	}
	return fmt.Sprintf("muster-e2e%d", int(l))
}

// lockFile is locked by the process that has this lane. It contains the directory of its clusters, so that the next owner can remove
// the remains of a killed process.
func (l lane) lockFile() string { return "/run/" + l.name() + ".lock" }

// linkName is the name of the link between this machine and the switch.
func (l lane) linkName() string { return l.name() }

// cgroups is the prefix of the cgroups of this lane. They are directly below the root, where a kubelet looks for its own.
func (l lane) cgroups() string { return l.name() + "-" }

// machine is the address of this machine in the lane's network.
func (l lane) machine() string { return l.address(1) }

func (l lane) address(host int) string { return fmt.Sprintf("10.99.%d.%d", int(l), host) }

// lock is a lane that this process has. The kernel releases it when the process ends.
type lock struct {
	lane lane
	file *os.File
}

// lockFiles are the lock files of all lanes.
func lockFiles() (files []string) {
	for l := range lane(lanes) {
		files = append(files, l.lockFile())
	}
	return files
}

// acquire takes the first free lane, given the lock files of all lanes, and waits if none is free.
func acquire(files []string, log io.Writer) (taken *lock, err error) {
	pace, waits := await.Pace{First: 200 * time.Millisecond, Most: time.Second}, false
	ended := pace.Until(context.Background(), func(context.Context) (bool, string) {
		if taken, err = takeAny(files); taken == nil && err == nil && !waits {
			waits = true
			fmt.Fprintf(log, "other processes have clusters on this machine (%s): waiting until one of them ends\n", strings.Join(files, ", "))
		}
		return taken != nil || err != nil, "all are taken"
	})
	return taken, errors.Join(err, ended)
}

// takeAny returns nil if no lane is free.
func takeAny(files []string) (*lock, error) {
	for l, file := range files {
		if taken, err := take(lane(l), file); taken != nil || err != nil {
			return taken, err
		}
	}
	return nil, nil //nolint:nilnil // not an error
}

// take returns nil if another process has the lane.
func take(l lane, path string) (*lock, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, file.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return &lock{lane: l, file: file}, nil
}

// folder is the directory of the previous owner, or empty if it has removed its directory.
func (l *lock) folder() (string, error) {
	data, err := os.ReadFile(l.file.Name())
	return strings.TrimSpace(string(data)), err
}

// keep records the directory of this owner.
func (l *lock) keep(folder string) error {
	return os.WriteFile(l.file.Name(), []byte(folder+"\n"), 0o600)
}

// release frees the lane. The caller has removed everything, so the record is cleared.
func (l *lock) release() error {
	return errors.Join(l.file.Truncate(0), l.file.Close())
}

// removeLeftovers removes what killed owners have left, in the lane of this process and in free lanes. The kernel has already ended
// their processes, and with them their namespaces and mounts.
func (p *provider) removeLeftovers(ctx context.Context) error {
	all := p.removeLeftoversOf(ctx, p.lock)
	for l := range lane(lanes) {
		if l == p.lock.lane {
			continue
		}
		other, err := take(l, l.lockFile())
		if other != nil {
			err = errors.Join(p.removeLeftoversOf(ctx, other), other.release())
		}
		all = errors.Join(all, err)
	}
	return all
}

// removeLeftoversOf is for a lane that this process has locked, so that no other process uses it.
func (p *provider) removeLeftoversOf(ctx context.Context, owned *lock) error {
	owned.lane.removeCable(ctx)
	for _, group := range p.system.cgroups.namesWithPrefix(owned.lane.cgroups()) {
		p.logf("removing the cgroups %s, which a killed process has left", group)
		if err := p.system.cgroups.remove(group); err != nil {
			return err
		}
	}
	folder, err := owned.folder()
	if err != nil || !isOurs(folder) {
		return err
	}
	p.logf("removing %s, which a killed process has left", folder)
	return os.RemoveAll(folder)
}

// removeCable deletes the link if it exists. Errors are ignored, because the kernel may be deleting it at the same time.
func (l lane) removeCable(ctx context.Context) {
	if _, err := net.InterfaceByName(l.linkName()); err == nil {
		_, _ = command.Run(ctx, nil, "ip", "link", "delete", l.linkName())
	}
}

// isOurs prevents an invalid lock file from removing other directories.
func isOurs(folder string) bool {
	return filepath.IsAbs(folder) && strings.HasPrefix(filepath.Base(folder), folderName)
}
