package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/muster-fleet/muster/internal/await"
)

// lock is a lane of this machine for ourselves. The kernel releases it with the process.
type lock struct {
	lane lane
	file *os.File
}

// lockFiles are those of all lanes.
func lockFiles() (files []string) {
	for l := range lane(lanes) {
		files = append(files, l.lockFile())
	}
	return files
}

// acquire takes the first lane that nobody has, given their lock files, and waits for one where there is none.
func acquire(files []string, log io.Writer) (taken *lock, err error) {
	pace, waits := await.Pace{First: 200 * time.Millisecond, Most: time.Second}, false
	ended := pace.Until(context.Background(), func(context.Context) (bool, string) {
		if taken, err = takeAny(files); taken == nil && err == nil && !waits {
			waits = true
			fmt.Fprintf(log, "other processes have clusters on this machine (%s): waiting for the end of one\n", strings.Join(files, ", "))
		}
		return taken != nil || err != nil, "all are taken"
	})
	return taken, errors.Join(err, ended)
}

// takeAny returns nil when all are taken.
func takeAny(files []string) (*lock, error) {
	for l, file := range files {
		if taken, err := take(lane(l), file); taken != nil || err != nil {
			return taken, err
		}
	}
	return nil, nil //nolint:nilnil // nothing is wrong with it
}

// take returns nil when somebody else has the lane.
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

// folder is that of the last owner, or empty when it ended in order.
func (l *lock) folder() (string, error) {
	data, err := os.ReadFile(l.file.Name())
	return strings.TrimSpace(string(data)), err
}

// keep notes the folder of this owner.
func (l *lock) keep(folder string) error {
	return os.WriteFile(l.file.Name(), []byte(folder+"\n"), 0o600)
}

// release gives the lane to the next one. What is left to clean up is then nothing.
func (l *lock) release() error {
	return errors.Join(l.file.Truncate(0), l.file.Close())
}
