//go:build e2e

package e2e

import (
	"context"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	// charts of this commit.
	charts = "../charts"
	// previousTag is the tag of the images of the previous commit, which scripts/e2e builds.
	previousTag = "previous"
)

// installHub installs the two charts of a hub, or upgrades to them, and waits until it runs. Agents use the address in the
// administrator's kubeconfig.
func (s *suite) installHub(ctx context.Context, folder, tag string, more ...string) error {
	if err := rest.LoadTLSFiles(s.hub.config); err != nil {
		return err
	}
	ca, err := s.file(s.hub.Name()+"-ca.pem", s.hub.config.CAData)
	if err != nil {
		return err
	}
	if _, err := s.helm(ctx, s.hub, "upgrade", "--install", "--create-namespace", "--wait", "fleet-crd", filepath.Join(folder, "fleet-crd")); err != nil {
		return err
	}
	_, err = s.helm(ctx, s.hub, append([]string{
		"upgrade", "--install", "--create-namespace", "--wait", "fleet", filepath.Join(folder, "fleet"), "--values", "testdata/hub.yaml",
		"--set", "apiServerURL=" + s.hub.config.Host, "--set-file", "apiServerCA=" + ca,
		"--set", "image.tag=" + tag, "--set", "agentImage.tag=" + tag,
	}, more...)...)
	return err
}

// ensureInstalled installs the hub of this commit before the first scene that needs one.
func (s *suite) ensureInstalled(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.installed {
		return
	}
	if err := s.installHub(t.Context(), charts, s.options.tag); err != nil {
		t.Fatal(err)
	}
	s.installed = true
}

// configure changes the hub's values, and restores them at the end of the scene.
func (s *scene) configure(changes ...string) {
	s.Helper()
	s.undo("the hub's values", func(ctx context.Context) error { return s.installHub(ctx, charts, s.options.tag) })
	s.fail(s.installHub(s.Context(), charts, s.options.tag, changes...))
}

// deleteNamespaces deletes namespaces and waits until they are gone.
func (c *cluster) deleteNamespaces(ctx context.Context, names ...string) error {
	return together(names, func(name string) error {
		return gone(ctx, "Namespace "+name, func(ctx context.Context) error {
			_, err := c.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			return err
		}, func(ctx context.Context) error {
			return c.kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		})
	})
}
