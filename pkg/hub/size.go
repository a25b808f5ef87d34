package hub

import (
	"crypto/sha256"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/bundle"
	"github.com/muster-fleet/muster/pkg/controllers/bundle/templates"
	"github.com/muster-fleet/muster/pkg/registration"
)

// maxClientID limits the bytes of a clientID and a clientRandom. The definitions of the kinds limit both to MaxClientIDLength characters, of four bytes at
// most, but not those of Fleet.
const maxClientID = 4 * registration.MaxClientIDLength

// withSmallMetadata returns a transform that also drops metadata of an object of a user that takes too much memory.
func withSmallMetadata(first cache.TransformFunc) cache.TransformFunc {
	return func(object any) (any, error) {
		dropped := false
		if accessor, err := meta.Accessor(object); err == nil {
			dropped = limitMetadata(accessor, registration.MaxLabelsMemory, registration.MaxAnnotationsMemory)
		}
		switch o := object.(type) {
		case *fleet.Cluster:
			o.Spec.MetadataTooLarge = o.Spec.MetadataTooLarge || dropped
		case *fleet.ClusterGroup:
			o.Spec.MetadataTooLarge = o.Spec.MetadataTooLarge || dropped
		case *fleet.Bundle:
			if dropped {
				o.Spec = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, MetadataTooLarge: true} // see reduceBundle
			}
		case *fleet.ClusterRegistration:
			if sizeOfMap(o.Spec.ClusterLabels) > registration.MaxLabelsMemory {
				o.Spec.ClusterLabels, dropped = nil, true
			}
			for _, text := range []*string{&o.Spec.ClientID, &o.Spec.ClientRandom} {
				if len(*text) > maxClientID {
					*text, dropped = "", true
				}
			}
			o.Spec.TooLarge = o.Spec.TooLarge || dropped
		}
		if first == nil {
			return object, nil
		}
		return first(object)
	}
}

// limitMetadata reports whether it has dropped labels, annotations, finalizers or owners that take more memory than a limit: maxLabels is also that of
// finalizers and of owners. It keeps labels, annotations and finalizers of the hub and of other controllers of the fleet, unless a user has added too
// many of these as well: they say, for example, that the hub ignores the object. The digest of the namespace key always stays: without it, the hub would
// not recognize the namespace that it has just created for a Cluster.
func limitMetadata(object metav1.Object, maxLabels, maxAnnotations int) (dropped bool) {
	reduce := func(all map[string]string, limit int) map[string]string {
		if sizeOfMap(all) <= limit {
			return all
		}
		dropped = true
		kept := maps.Clone(all)
		maps.DeleteFunc(kept, func(key, _ string) bool { return !strings.Contains(key, "cattle.io/") })
		if sizeOfMap(kept) > limit {
			maps.DeleteFunc(kept, func(key, value string) bool {
				return key != fleet.NamespaceDigestAnnotation || len(value) > 2*sha256.Size
			})
		}
		return maps.Collect(maps.All(kept)) // a map keeps the room for what was deleted
	}
	object.SetLabels(reduce(object.GetLabels(), maxLabels))
	object.SetAnnotations(reduce(object.GetAnnotations(), maxAnnotations))
	if exceeds(object.GetFinalizers(), maxLabels) {
		dropped = true
		ofFleet := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return !strings.Contains(f, "cattle.io/") })
		if exceeds(slices.Clip(slices.Clone(ofFleet)), maxLabels) {
			ofFleet = nil
		}
		object.SetFinalizers(append([]string(nil), ofFleet...))
	}
	if exceeds(object.GetOwnerReferences(), maxLabels) {
		dropped = true
		object.SetOwnerReferences(shortOwners(object.GetOwnerReferences()))
	}
	return dropped
}

// sizeOfMap returns the memory that labels take.
func sizeOfMap(all map[string]string) int {
	const header = 16 // of a string
	size := mapSize + len(all)*(entrySize+2*header)
	for key, value := range all {
		size += len(key) + len(value)
	}
	return size
}

// reduceSpec drops settings of the agent and templateValues that take too much memory, and cuts names that are longer than any valid one. Users of a
// workspace may write Clusters of 1.5 MiB, and empty elements of a list take up to thirty times their JSON.
func reduceSpec(spec *fleet.ClusterSpec) {
	reduceSettings(spec, agentspec.MaxSettingsMemory)
	reduceTemplateValues(spec, templates.MaxClusterValues)
	if len(spec.ClientID) > maxClientID { // no request has it
		spec.ClientID = strings.Clone(spec.ClientID[:maxClientID+1])
	}
	spec.KubeConfigSecret, spec.KubeConfigSecretNamespace = short(spec.KubeConfigSecret), short(spec.KubeConfigSecretNamespace)
}

func reduceSettings(spec *fleet.ClusterSpec, limit int) {
	// Fields with free-form content from users, which only an import or the Bundle of the agent reads; the removal of the agent reads the scheduling, too.
	agent := []any{
		spec.AgentEnvVars, spec.AgentTolerations, spec.AgentAffinity, spec.AgentResources, spec.AgentSchedulingCustomization, spec.AgentPullSecrets,
		spec.AgentNamespace, spec.PrivateRepoURL,
	}
	if !exceeds(agent, limit) {
		return
	}
	spec.AgentEnvVars, spec.AgentTolerations, spec.AgentAffinity, spec.AgentResources = nil, nil, nil, nil
	spec.AgentPullSecrets, spec.SettingsTooLarge = nil, true
	spec.AgentNamespace, spec.PrivateRepoURL = short(spec.AgentNamespace), short(spec.PrivateRepoURL)
	if exceeds(spec.AgentSchedulingCustomization, limit/2) { // a smaller one stays, because the removal of the agent reads it
		spec.AgentSchedulingCustomization = nil
	}
}

func reduceTemplateValues(spec *fleet.ClusterSpec, limit int) {
	if exceeds(spec.TemplateValues, limit) {
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
