package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// EnvBinaries names a directory with the programs. controller-runtime uses the same variable.
const EnvBinaries = "KUBEBUILDER_ASSETS"

// EnvMemberBinaries names the directory for the shared control planes of members, which then differ in version from the control planes of hubs.
const EnvMemberBinaries = "MUSTER_MEMBER_ASSETS"

// buildScript builds the programs and prints their directory. The path is relative to the root of the repository.
const buildScript = "scripts/kube"

// Binaries returns the directory with etcd, kube-apiserver and kube-controller-manager: $KUBEBUILDER_ASSETS if it is set, otherwise the
// directory in which scripts/kube has built them. The first build takes minutes; its progress is written to w.
func Binaries(ctx context.Context, w io.Writer) (string, error) {
	if dir := os.Getenv(EnvBinaries); dir != "" {
		return filepath.Abs(dir)
	}
	script, err := findScript()
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, script)
	var dir bytes.Buffer
	command.Stdout, command.Stderr = &dir, w
	// A script that is killed would leave its compilers running.
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("building the programs of a control plane with %s: %w", script, err)
	}
	return strings.TrimSpace(dir.String()), nil
}

// findScript searches upwards from the working directory, where tests run, and from the program, which is built into bin/.
func findScript() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if program, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(program))
	}
	for _, dir := range starts {
		for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			script := filepath.Join(dir, buildScript)
			if _, err := os.Stat(script); err == nil {
				return script, nil
			}
		}
	}
	return "", fmt.Errorf("no %s in or above %s: run inside a clone of the repository, or set %s to a directory with etcd, kube-apiserver and kube-controller-manager",
		buildScript, strings.Join(starts, " and "), EnvBinaries)
}
