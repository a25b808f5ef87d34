// Package binaries builds the programs of this repository for tests that run them as processes.
package binaries

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	dir, err := os.MkdirTemp("", "muster-programs-")
	if err != nil {
		return failed(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := Build(context.Background(), dir, programs...); err != nil {
		return failed(err)
	}
	*folder = dir
	return controlplane.RunTests(m)
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
