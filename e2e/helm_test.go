//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// systemNamespace is the documented namespace of hub and agent.
const systemNamespace = "cattle-fleet-system"

// helm runs the program helm on one cluster.
func (s *suite) helm(ctx context.Context, c *cluster, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "helm", append([]string{"--kubeconfig", c.Kubeconfig(), "--namespace", systemNamespace}, args...)...)
	home := filepath.Join(s.options.output, "helm")
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w:\n%s", command, err, output)
	}
	return string(output), nil
}

// helm runs helm in a scene, which fails if helm fails.
func (s *scene) helm(c *cluster, args ...string) {
	s.Helper()
	_, err := s.suite.helm(s.Context(), c, args...)
	s.fail(err)
}

// file writes a file for helm to read.
func (s *suite) file(name string, data []byte) (string, error) {
	path := filepath.Join(s.options.output, "files", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, data, 0o600)
}
