//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/k3d"
	"github.com/muster-fleet/muster/e2e/clusters/local"
)

const (
	providerLocal = "local"
	providerK3d   = "k3d"
)

// newProvider returns the provider that scripts/e2e has chosen.
func newProvider(o options) (clusters.Provider, error) {
	dir := filepath.Join(o.output, "clusters")
	switch o.provider {
	case providerLocal:
		return local.New(local.Options{Binaries: o.binaries, Dir: dir, Log: os.Stderr})
	case providerK3d:
		least, err := leastKubernetes()
		if err != nil {
			return nil, err
		}
		return k3d.New(k3d.Options{Dir: dir, Image: os.Getenv("MUSTER_E2E_K3S_IMAGE"), Least: least, Log: os.Stderr})
	}
	return nil, fmt.Errorf("MUSTER_E2E_PROVIDER is %q: there are %s and %s", o.provider, providerLocal, providerK3d)
}

// leastKubernetes is the oldest Kubernetes version that the charts accept.
func leastKubernetes() (string, error) {
	data, err := os.ReadFile(filepath.Join(charts, "fleet", "Chart.yaml"))
	if err != nil {
		return "", err
	}
	var chart struct{ KubeVersion string }
	if err := yaml.Unmarshal(data, &chart); err != nil {
		return "", err
	}
	least, found := strings.CutPrefix(chart.KubeVersion, ">= ")
	if !found {
		return "", fmt.Errorf("chart fleet wants Kubernetes %q, and the suite reads only %q", chart.KubeVersion, ">= VERSION")
	}
	return least, nil
}
