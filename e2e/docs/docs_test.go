//go:build e2e

package docs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/internal/binaries"
	"github.com/muster-fleet/muster/internal/inventory"
)

const root = "../.."

// guard removes the clusters if the test is interrupted.
var guard clusters.Guard

func TestMain(m *testing.M) { os.Exit(guard.Run(m)) }

func TestCommandsOfTheDocumentation(t *testing.T) {
	output := os.Getenv("MUSTER_E2E_OUTPUT")
	require.NotEmpty(t, output, "MUSTER_E2E_OUTPUT is not set: run the test by scripts/e2e")
	dir := filepath.Join(output, "docs")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	e := newEnvironment(t, dir)
	before := map[string]inventory.Inventory{}
	for _, name := range contexts() {
		before[name] = take(t, e, name)
	}

	s := terminal(t, e, filepath.Join(dir, "work"))
	started := time.Now()
	for _, page := range Pages {
		if !t.Run(filepath.Base(page), func(t *testing.T) { runPage(t, s, page) }) {
			t.FailNow()
		}
	}
	t.Logf("all commands took %s", time.Since(started).Round(time.Second))
	for _, name := range contexts() {
		requireNothingLeft(t, e, name, before[name])
	}
}

func runPage(t *testing.T, s *Session, page string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	blocks, err := Parse(page, string(text))
	require.NoError(t, err)
	s.Log = t.Output()
	for _, block := range blocks {
		begun := time.Now()
		t.Logf("%s\n%s", block, block.Script)
		require.NoError(t, s.Run(t.Context(), block))
		t.Logf("%.1f s", time.Since(begun).Seconds())
	}
}

// terminal returns a session in a directory that has the programs and charts of a clone.
func terminal(t *testing.T, e *environment, dir string) *Session {
	t.Helper()
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o700))
	clone, err := filepath.Abs(root)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(clone, "charts"), filepath.Join(dir, "charts")))
	require.NoError(t, binaries.Build(t.Context(), filepath.Join(dir, "bin"), "muster"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new-ca.pem"), e.newCA, 0o600))
	helm := filepath.Join(dir, ".helm")
	return &Session{Dir: dir, Env: append(os.Environ(),
		"KUBECONFIG="+e.kubeconfig, "REGISTRY=", "TAG="+os.Getenv("MUSTER_E2E_TAG"), "NEW_HUB_URL="+e.newURL,
		"HELM_CACHE_HOME="+helm, "HELM_CONFIG_HOME="+helm, "HELM_DATA_HOME="+helm)}
}

func take(t *testing.T, e *environment, name string) inventory.Inventory {
	t.Helper()
	config, err := e.config(name)
	require.NoError(t, err)
	found, err := inventory.Take(t.Context(), config)
	require.NoError(t, err)
	return found
}

// requireNothingLeft checks the last section of the pages, which removes everything. Kubernetes deletes dependents a moment after their owners.
func requireNothingLeft(t *testing.T, e *environment, name string, before inventory.Inventory) {
	t.Helper()
	const patience, pause = 2 * time.Minute, 2 * time.Second
	var left []inventory.Thing
	ok := assert.Eventually(t, func() bool {
		left = take(t, e, name).Since(before)
		left = slices.DeleteFunc(left, ofKubernetes)
		return len(left) == 0
	}, patience, pause)
	require.True(t, ok, "left on %s: %s", name, inventory.List(left))
}

// ofKubernetes matches objects that Kubernetes may create for itself at any time.
func ofKubernetes(thing inventory.Thing) bool {
	return thing.Namespace == "kube-node-lease" || thing.Namespace == "kube-system" && thing.Kind == "ConfigMap"
}
