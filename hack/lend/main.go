// Command lend runs a command and lends control planes to the test binaries below it. They would start their own otherwise,
// which takes seconds and much CPU for each.
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
	dir, err := folder()
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
	lender := &controlplane.Lender{}
	go lender.Serve(context.Background(), listener)
	defer func() { err = errors.Join(err, lender.Stop()) }()

	// A terminal interrupts the command too, which then ends by itself.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGINT)
	child := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // to run a command is what this program is for
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(os.Environ(), controlplane.EnvLender+"="+socket)
	return child.Run()
}

// folder makes the folder of the socket. Its path is the same on every run of a user, unless another run has it: the results
// of tests that read it are cached with its value.
func folder() (string, error) {
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
	// Left by a run that was killed.
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o700)
}
