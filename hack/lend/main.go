// Command lend runs a command and lends control planes to the test binaries that it starts. Otherwise each test binary would start its own
// control planes, which takes seconds and much CPU.
//
// usage: lend COMMAND [ARGUMENT...]
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
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
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
		return errors.New("usage: lend COMMAND [ARGUMENT...]")
	}
	dir, err := makeDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	lender := &controlplane.Lender{BeforeControllerManager: map[string]controlplane.Prepare{"hub": withkinds.Install, "kinds": withkinds.Install}}
	go lender.Serve(context.Background(), listener)
	defer func() { err = errors.Join(err, lender.Stop()) }()

	// A terminal also interrupts the command, which then ends by itself.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGINT)
	child := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the purpose of this program
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(os.Environ(), controlplane.EnvLender+"="+socket)
	// It is for the control planes only. They share the CPUs, and use a seventh less CPU if each runs Go code on one thread.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return err
	}
	return child.Run()
}

// makeDir creates the directory of the socket. The path is the same in every run of a user, unless another run is using it, because go test
// caches results together with the environment variables that a test has read.
func makeDir() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("muster-lend-%d", os.Getuid()))
	err := os.Mkdir(dir, 0o700)
	if !errors.Is(err, os.ErrExist) {
		return dir, err
	}
	connection, err := net.Dial("unix", filepath.Join(dir, "socket"))
	if err == nil {
		_ = connection.Close()
		return os.MkdirTemp("", "muster-lend-")
	}
	// A run that was killed has left it.
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o700)
}
