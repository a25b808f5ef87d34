package bundle

import (
	"fmt"
	"strings"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// unsupported are the fields of a Bundle that ask for what this hub cannot do. Deploying without it would be something
// else than was asked for.
func unsupported(spec fleet.BundleSpec) (fields []string) {
	given := func(is bool, field string) {
		if is {
			fields = append(fields, "spec."+field)
		}
	}
	given(spec.ContentsID != "", "contentsId")
	given(spec.HelmOpOptions != nil, "helmOpOptions")
	given(spec.ValuesHash != "", "valuesHash")
	given(limits(spec.RolloutStrategy), "rolloutStrategy")
	unsupportedOptions("", spec.BundleDeploymentOptions, given)
	for i, t := range spec.Targets {
		unsupportedOptions(fmt.Sprintf("targets[%d].", i), t.BundleDeploymentOptions, given)
	}
	return fields
}

func unsupportedOptions(at string, o fleet.BundleDeploymentOptions, given func(bool, string)) {
	given(o.Kustomize != nil, at+"kustomize")
	given(len(o.DownstreamResources) > 0, at+"downstreamResources")
	if o.Helm == nil {
		return
	}
	given(len(o.Helm.TemplateValues) > 0, at+"helm.templateValues")
	given(!o.Helm.DisablePreProcess && o.Helm.Values != nil && hasTemplate(o.Helm.Values.Data), at+"helm.values (a template, unless disablePreProcess)")
}

// limits says whether a strategy is given at all.
func limits(s *fleet.RolloutStrategy) bool {
	return s != nil && (s.MaxUnavailable != nil || s.MaxUnavailablePartitions != nil || s.AutoPartitionSize != nil || len(s.Partitions) > 0)
}

// hasTemplate looks for the values that would be templates over the Cluster's labels.
func hasTemplate(value any) bool {
	switch v := value.(type) {
	case string:
		return strings.Contains(v, "${")
	case map[string]any:
		for key, inner := range v {
			if hasTemplate(key) || hasTemplate(inner) {
				return true
			}
		}
	case []any:
		for _, inner := range v {
			if hasTemplate(inner) {
				return true
			}
		}
	}
	return false
}

func tellUnsupported(fields []string) string {
	return "this hub cannot carry out " + strings.Join(fields, ", ") + "; what was deployed before stays as it is"
}
