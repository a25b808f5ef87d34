// Package command runs the programs of the system that clusters are made of.
package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Runner runs a program with the given input, which may be nil, and returns its standard output. A test has one of its own.
type Runner func(ctx context.Context, input io.Reader, args ...string) ([]byte, error)

// Run is the Runner for real programs. The error of one that fails has the command line and what it said on standard error.
func Run(ctx context.Context, input io.Reader, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	var output, complaint bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = input, &output, &complaint
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return output.Bytes(), nil
}

// Build builds packages of this repository into dir. Without cgo: in an empty image there are no libraries.
func Build(ctx context.Context, run Runner, dir string, packages ...string) error {
	args := append([]string{"env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir + "/"}, packages...)
	if _, err := run(ctx, nil, args...); err != nil {
		return fmt.Errorf("build the helpers of the clusters, which has to be done inside the repository: %w", err)
	}
	return nil
}
