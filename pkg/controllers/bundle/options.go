package bundle

import (
	"k8s.io/apimachinery/pkg/util/json"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// mergeOptions lays each override over what was before, as JSON: objects merge, everything else replaces. A field that is
// not set overrides nothing.
func mergeOptions(base fleet.BundleDeploymentOptions, overrides ...fleet.BundleDeploymentOptions) (merged fleet.BundleDeploymentOptions, err error) {
	all := map[string]any{}
	for _, o := range append([]fleet.BundleDeploymentOptions{base}, overrides...) {
		fields, err := fieldsOf(o)
		if err != nil {
			return merged, err
		}
		overlay(all, fields)
	}
	data, err := json.Marshal(all)
	if err != nil {
		return merged, err
	}
	err = json.Unmarshal(data, &merged)
	return merged, err
}

func fieldsOf(o fleet.BundleDeploymentOptions) (fields map[string]any, err error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(data, &fields)
	return fields, err
}

func overlay(into, from map[string]any) {
	for key, value := range from {
		inner, ok := value.(map[string]any)
		existing, also := into[key].(map[string]any)
		if ok && also {
			overlay(existing, inner)
			continue
		}
		into[key] = value
	}
}
