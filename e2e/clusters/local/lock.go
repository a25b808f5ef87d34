package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// lockFile is held by the one process of this machine that has clusters: network, cgroups and addresses have fixed names.
// It says which folder the clusters are in, for the next owner to clean up after one that was killed.
const lockFile = "/run/muster-e2e.lock"

// lock is the machine for ourselves. The kernel releases it with the process.
type lock struct {
	file *os.File
}

// acquire waits until nobody else has clusters on this machine.
func acquire(path string, log io.Writer) (*lock, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		fmt.Fprintf(log, "another process has clusters on this machine (%s): waiting for its end\n", path)
		err = flock(file)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return &lock{file: file}, nil
}

// flock waits for the lock. Go's own signals, which it sends to its threads all the time, interrupt that.
func flock(file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// folder is that of the last owner, or empty when it ended in order.
func (l *lock) folder() (string, error) {
	data, err := os.ReadFile(l.file.Name())
	return strings.TrimSpace(string(data)), err
}

// keep notes the folder of this owner.
func (l *lock) keep(folder string) error {
	return os.WriteFile(l.file.Name(), []byte(folder+"\n"), 0o600)
}

// release gives the machine to the next one. What is left to clean up is then nothing.
func (l *lock) release() error {
	return errors.Join(l.file.Truncate(0), l.file.Close())
}
