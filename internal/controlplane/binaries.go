package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Names of the programs inside the folder of binaries.
const (
	binaryEtcd              = "etcd"
	binaryAPIServer         = "kube-apiserver"
	binaryControllerManager = "kube-controller-manager"
)

// EnvBinaries names a folder of ready-made binaries, as the controller-runtime tooling does.
const EnvBinaries = "KUBEBUILDER_ASSETS"

// buildScript builds the binaries and prints their folder; relative to the root of the repository.
const buildScript = "scripts/kube"

// buildGrace is how long an interrupted build may take to clean up.
const buildGrace = 10 * time.Second

// Binaries returns the folder with etcd, kube-apiserver and kube-controller-manager: $KUBEBUILDER_ASSETS when it is set,
// else bin/kube/VERSION of this repository, where scripts/kube builds them on first use. The first build takes minutes;
// its progress goes to w.
func Binaries(ctx context.Context, w io.Writer) (string, error) {
	if dir := os.Getenv(EnvBinaries); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	return runBuildScript(ctx, filepath.Join(root, buildScript), w)
}

func runBuildScript(ctx context.Context, script string, w io.Writer) (string, error) {
	command := exec.CommandContext(ctx, script)
	var folder bytes.Buffer
	command.Stdout, command.Stderr = &folder, w
	// Killed, it could not end the compilers it started.
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = buildGrace
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("build the control plane binaries with %s: %w", script, err)
	}
	return strings.TrimSpace(folder.String()), nil
}

// repositoryRoot looks upwards from the working folder, where tests run, and from the running program, which lies in bin/.
func repositoryRoot() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if program, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(program))
	}
	for _, start := range starts {
		if root, ok := findUpwards(start, buildScript); ok {
			return root, nil
		}
	}
	return "", fmt.Errorf("no %s in or above %s: run inside a clone of the repository, or set %s to a folder with %s, %s and %s",
		buildScript, strings.Join(starts, " and "), EnvBinaries, binaryEtcd, binaryAPIServer, binaryControllerManager)
}

func findUpwards(dir, file string) (string, bool) {
	for {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}

// checkBinaries finds a missing program before anything is started, with all that are missing in one error.
func checkBinaries(dir string, names ...string) error {
	var missing []error
	for _, name := range names {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			missing = append(missing, err)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("control plane binaries: %w", errors.Join(missing...))
	}
	return nil
}
