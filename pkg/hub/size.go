package hub

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/bundle"
)

// agentFields are the fields of a ClusterSpec with free-form content from users, which only an import or the Bundle of the agent reads; the
// removal of the agent reads scheduling, too.
type agentFields struct {
	envVars     []corev1.EnvVar
	tolerations []corev1.Toleration
	affinity    *corev1.Affinity
	resources   *corev1.ResourceRequirements
	scheduling  *fleet.AgentSchedulingCustomization
	pullSecrets *[]corev1.LocalObjectReference
}

// reduceSpec drops settings of the agent and templateValues that take too much memory. Users of a workspace may write Clusters of 1.5 MiB,
// and empty elements of a list take up to thirty times their JSON.
func reduceSpec(spec *fleet.ClusterSpec) {
	agent := agentFields{
		spec.AgentEnvVars, spec.AgentTolerations, spec.AgentAffinity, spec.AgentResources, spec.AgentSchedulingCustomization, spec.AgentPullSecrets,
	}
	if exceeds(agent, agentspec.MaxSettingsMemory) {
		spec.AgentEnvVars, spec.AgentTolerations, spec.AgentAffinity, spec.AgentResources = nil, nil, nil, nil
		spec.AgentPullSecrets, spec.SettingsTooLarge = nil, true
		if exceeds(spec.AgentSchedulingCustomization, agentspec.MaxSettingsMemory/2) { // a smaller one stays, because the removal of the agent reads it
			spec.AgentSchedulingCustomization = nil
		}
	}
	if exceeds(spec.TemplateValues, bundle.MaxTemplateValues) {
		spec.TemplateValues, spec.TemplateValuesTooLarge = nil, true
	}
}

// reduceBundle drops the spec of a Bundle in the cache if it takes too much memory even without its resources, which the cache never has: empty
// targets take a hundred times their JSON. The one target that is left makes each Cluster of the workspace a candidate, so that what is deployed
// of the Bundle stays.
func reduceBundle(spec *fleet.BundleSpec) {
	if exceeds(*spec, bundle.MaxSpecMemory) {
		*spec = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true}
	}
}

// exceeds reports whether a decoded value takes more memory than the limit, without the allocator's overhead.
func exceeds(value any, limit int) bool {
	v := reflect.ValueOf(value)
	left := limit - int(v.Type().Size())
	return !subtractSize(v, &left)
}

// Bytes that a map takes, and each of its entries beside the key and the value.
const (
	mapSize   = 48
	entrySize = 16
)

// subtractSize subtracts the memory to which a value refers. It returns false, and stops, when nothing is left.
func subtractSize(v reflect.Value, left *int) bool {
	switch v.Kind() {
	case reflect.String:
		*left -= v.Len()
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return true
		}
		*left -= int(v.Elem().Type().Size())
		return subtractSize(v.Elem(), left)
	case reflect.Slice:
		*left -= v.Cap() * int(v.Type().Elem().Size())
		for i := 0; i < v.Len() && *left >= 0; i++ {
			subtractSize(v.Index(i), left)
		}
	case reflect.Map:
		each := entrySize + int(v.Type().Key().Size()) + int(v.Type().Elem().Size())
		if !v.IsNil() {
			*left -= mapSize + v.Len()*each
		}
		for entries := v.MapRange(); *left >= 0 && entries.Next(); {
			subtractSize(entries.Key(), left)
			subtractSize(entries.Value(), left)
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && *left >= 0; i++ {
			subtractSize(v.Field(i), left)
		}
	default: // its container counts it
	}
	return *left >= 0
}
