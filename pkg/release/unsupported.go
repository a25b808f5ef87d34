package release

import (
	"path"
	"strings"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// unsupported finds what cannot be done before anything is done.
func unsupported(o fleet.BundleDeploymentOptions, resources []fleet.BundleResource) error {
	for _, row := range []struct {
		asked      bool
		field, why string
	}{
		{o.Kustomize != nil && o.Kustomize.Dir != "", "kustomize", "build the manifests before they become a Bundle"},
		{hasKustomization(resources), "kustomization.yaml", "build the manifests before they become a Bundle"},
		{o.YAML != nil && len(o.YAML.Overlays) > 0, "yaml.overlays", "put the overlaid manifests into a Bundle of their own"},
		{len(o.DownstreamResources) > 0, "downstreamResources", "put the ConfigMaps and Secrets into the Bundle"},
		{fromRepository(o.Helm, resources), "helm.repo", "put the chart's files into the Bundle"},
	} {
		if row.asked {
			return &UnsupportedError{Field: row.field, Why: row.why}
		}
	}
	return nil
}

func hasKustomization(resources []fleet.BundleResource) bool {
	for _, r := range resources {
		switch path.Base(r.Name) {
		case "kustomization.yaml", "kustomization.yml", "Kustomization":
			return true
		}
	}
	return false
}

// fromRepository says that a chart is asked for that is not among the resources.
func fromRepository(h *fleet.HelmOptions, resources []fleet.BundleResource) bool {
	if h == nil || h.Repo == "" && !strings.Contains(h.Chart, "://") {
		return false
	}
	_, found := chartFolder(h.Chart, resources)
	return !found
}
