// Package binaries builds the programs of this repository for tests that run them as processes.
package binaries

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/muster-fleet/muster/internal/controlplane"
)

// Build builds programs of cmd into a directory with the flags of scripts/build. With other flags, Go would compile the libraries of
// Kubernetes again.
func Build(ctx context.Context, folder string, programs ...string) error {
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", folder + string(filepath.Separator)}
	for _, program := range programs {
		args = append(args, "github.com/muster-fleet/muster/cmd/"+program)
	}
	build := exec.CommandContext(ctx, "go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s\n%s", err, build, output)
	}
	return nil
}

// RunTests runs tests of programs with controlplane.RunTests. It builds the programs into a directory, sets *folder to it, and removes the
// directory at the end.
func RunTests(m *testing.M, folder *string, programs ...string) int {
	dir, err := buildOnce(context.Background(), programs)
	defer func() { _ = os.RemoveAll(dir) }()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*folder = dir
	return controlplane.RunTests(m)
}

// buildOnce builds programs in bin/test, where Go does not link a program again that has not changed, and returns a new directory with links
// to them: a later build replaces the files in bin/test, but not the linked ones.
func buildOnce(ctx context.Context, programs []string) (dir string, err error) {
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	shared := filepath.Join(filepath.Dir(string(module)), "bin", "test")
	if err := os.MkdirAll(shared, 0o750); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(shared, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if err := Build(ctx, shared, programs...); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp(shared, "run-"); err != nil {
		return "", err
	}
	for _, program := range programs {
		err = errors.Join(err, os.Link(filepath.Join(shared, program), filepath.Join(dir, program)))
	}
	return dir, err
}
