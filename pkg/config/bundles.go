package config

import (
	"cmp"
	"fmt"
)

// Bundles limits what the hub stores for the Bundles of one workspace.
type Bundles struct {
	// WorkspaceLimitMiB is how many MiB the hub stores for the Clusters of one workspace in BundleDeployments of more than 16 KiB, with their Helm
	// values, and in copies of Secrets and ConfigMaps. Smaller BundleDeployments beyond 100,000 count 2 KiB each. 0 means DefaultWorkspaceLimitMiB.
	WorkspaceLimitMiB int `json:"workspaceLimitMiB,omitempty"`
}

// DefaultWorkspaceLimitMiB is a quarter of etcd's default quota of 2 GiB. An update doubles what is stored, until etcd is compacted.
const DefaultWorkspaceLimitMiB = 512

// maxWorkspaceLimitMiB is a tebibyte, more than any API server stores.
const maxWorkspaceLimitMiB = 1 << 20

// WorkspaceLimit returns the limit in bytes.
func (b Bundles) WorkspaceLimit() int64 {
	return int64(cmp.Or(b.WorkspaceLimitMiB, DefaultWorkspaceLimitMiB)) << 20
}

func (b Bundles) validate() error {
	if b.WorkspaceLimitMiB < 0 || b.WorkspaceLimitMiB > maxWorkspaceLimitMiB {
		return fmt.Errorf("bundles.workspaceLimitMiB is %d: it must be from 1 to %d, or 0 for the default of %d",
			b.WorkspaceLimitMiB, maxWorkspaceLimitMiB, DefaultWorkspaceLimitMiB)
	}
	return nil
}
