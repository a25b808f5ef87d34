// Command pooled runs a command with a pool of control planes: the test binaries below it borrow theirs from the pool instead
// of starting their own, which takes seconds and much CPU for each.
//
// usage: pooled COMMAND [ARGUMENT...]
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func main() {
	err := run(os.Args[1:])
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		os.Exit(max(ended.ExitCode(), 1))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(command []string) (err error) {
	if len(command) == 0 {
		return errors.New("usage: pooled COMMAND [ARGUMENT...]")
	}
	// The path is the same on every run of a user, because the results of tests that read it are cached with its value.
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("muster-pool-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) { // another run has it
		dir, err = os.MkdirTemp("", "muster-pool-")
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	pool := &controlplane.Pool{}
	go pool.Serve(context.Background(), listener)
	defer func() { err = errors.Join(err, pool.Stop()) }()

	// A terminal interrupts the command too, which then ends by itself.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGINT)
	child := exec.CommandContext(ctx, command[0], command[1:]...)
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(os.Environ(), controlplane.EnvPool+"="+socket)
	return child.Run()
}
