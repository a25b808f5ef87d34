// Package command runs programs of the system.
package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Runner runs a program with the given input, which may be nil, and returns its standard output. Tests replace it.
type Runner func(ctx context.Context, input io.Reader, args ...string) ([]byte, error)

// Run runs a real program. The error of a program that fails contains the command line and its standard error.
func Run(ctx context.Context, input io.Reader, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	var output, complaint bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = input, &output, &complaint
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return output.Bytes(), nil
}

// Build builds packages of this repository into dir, without cgo because the images contain no libraries.
func Build(ctx context.Context, run Runner, dir string, packages ...string) error {
	args := append([]string{"env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir + "/"}, packages...)
	if _, err := run(ctx, nil, args...); err != nil {
		return fmt.Errorf("build the helper programs of the clusters (only possible inside the repository): %w", err)
	}
	return nil
}
