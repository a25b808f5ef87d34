// Package providers chooses the provider of the clusters.
package providers

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/k3d"
	"github.com/muster-fleet/muster/e2e/clusters/local"
)

// FromEnvironment returns the provider that scripts/e2e has chosen. Its data are in a subdirectory of dir.
func FromEnvironment(dir string) (clusters.Provider, error) {
	dir = filepath.Join(dir, "clusters")
	switch name := os.Getenv("MUSTER_E2E_PROVIDER"); name {
	case "", "local":
		return local.New(local.Options{Binaries: os.Getenv("MUSTER_E2E_BINARIES"), Dir: dir, Log: os.Stderr})
	case "k3d":
		return k3d.New(k3d.Options{Dir: dir, Image: os.Getenv("MUSTER_E2E_K3S_IMAGE"), Log: os.Stderr})
	default:
		return nil, fmt.Errorf("MUSTER_E2E_PROVIDER is %q: there are local and k3d", name)
	}
}
