//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"

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
		return k3d.New(k3d.Options{Dir: dir, Image: os.Getenv("MUSTER_E2E_K3S_IMAGE"), Log: os.Stderr})
	}
	return nil, fmt.Errorf("MUSTER_E2E_PROVIDER is %q: there are %s and %s", o.provider, providerLocal, providerK3d)
}
