package bundle

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
)

// Reduce replaces the fields of the spec of a BundleDeployment that users fill by their digests. Every Cluster of a workspace has a
// BundleDeployment of each Bundle, so with 1,000 Clusters, a Bundle of one megabyte would take a gigabyte of the hub's memory. It computes no
// digests if the spec has them. It leaves a spec as it is that has Helm values in its options, as older versions of Fleet's hub write it, until the
// hub writes the BundleDeployment again, without these values.
func Reduce(spec *fleet.BundleDeploymentSpec) {
	if valuesOf(spec.Options) != nil || valuesOf(spec.StagedOptions) != nil {
		return
	}
	if spec.CachedDigests == nil {
		spec.CachedDigests = digestsOf(spec)
	}
	for _, f := range userFields {
		f.clear(spec)
	}
}

// userField is a field of the spec of a BundleDeployment that users fill.
type userField struct {
	name   string // in JSON
	value  func(*fleet.BundleDeploymentSpec) any
	clear  func(*fleet.BundleDeploymentSpec)
	digest func(*fleet.SpecDigests) *fleet.FieldDigest
}

var userFields = []userField{
	{
		"options", func(s *fleet.BundleDeploymentSpec) any { return s.Options },
		func(s *fleet.BundleDeploymentSpec) { s.Options = fleet.BundleDeploymentOptions{} },
		func(d *fleet.SpecDigests) *fleet.FieldDigest { return &d.Options },
	},
	{
		"stagedOptions", func(s *fleet.BundleDeploymentSpec) any { return s.StagedOptions },
		func(s *fleet.BundleDeploymentSpec) { s.StagedOptions = fleet.BundleDeploymentOptions{} },
		func(d *fleet.SpecDigests) *fleet.FieldDigest { return &d.StagedOptions },
	},
	{
		"dependsOn", func(s *fleet.BundleDeploymentSpec) any { return s.DependsOn },
		func(s *fleet.BundleDeploymentSpec) { s.DependsOn = nil },
		func(d *fleet.SpecDigests) *fleet.FieldDigest { return &d.DependsOn },
	},
	{
		"correctDrift", func(s *fleet.BundleDeploymentSpec) any { return s.CorrectDrift },
		func(s *fleet.BundleDeploymentSpec) { s.CorrectDrift = nil },
		func(d *fleet.SpecDigests) *fleet.FieldDigest { return &d.CorrectDrift },
	},
	{
		"helmChartOptions", func(s *fleet.BundleDeploymentSpec) any { return s.HelmChartOptions },
		func(s *fleet.BundleDeploymentSpec) { s.HelmChartOptions = nil },
		func(d *fleet.SpecDigests) *fleet.FieldDigest { return &d.HelmChartOptions },
	},
}

// digestsOf returns the digests of a spec, of which no field was dropped.
func digestsOf(spec *fleet.BundleDeploymentSpec) *fleet.SpecDigests {
	digests := &fleet.SpecDigests{}
	setDeployedDrift(digests, spec.Options.CorrectDrift)
	digests.Options, _ = digestOf(spec.Options, spec.Options.DownstreamResources)
	if digests.StagedOptions = digests.Options; !equality.Semantic.DeepEqual(spec.Options, spec.StagedOptions) {
		digests.StagedOptions, _ = digestOf(spec.StagedOptions, spec.StagedOptions.DownstreamResources)
	}
	digests.DependsOn, _ = digestOf(spec.DependsOn, nil)
	digests.CorrectDrift, _ = digestOf(spec.CorrectDrift, nil)
	digests.HelmChartOptions, _ = digestOf(spec.HelmChartOptions, nil)
	digests.HelmChartOptions.Sources = encodeSources(loginsOf(spec.HelmChartOptions))
	return digests
}

// digestOf returns the digest of a field, with the Secrets and ConfigMaps that it names, and the size of its JSON.
func digestOf(field any, named []fleet.DownstreamResource) (digest fleet.FieldDigest, size int) {
	if isEmpty(field) {
		return digest, 0
	}
	text, err := json.Marshal(field)
	if err != nil {
		panic(fmt.Sprintf("what was decoded from JSON always marshals: %v", err))
	}
	digest.Sum = sha256.Sum256(text)
	if len(named) > 0 {
		sources := make([]copySource, 0, len(named))
		for _, r := range named {
			sources = append(sources, sourceOf(r))
		}
		digest.Sources = encodeSources(sources)
	}
	return digest, len(text)
}

// deployedDrift returns the correctDrift in the options of a spec, even after Reduce.
func deployedDrift(spec *fleet.BundleDeploymentSpec) *fleet.CorrectDrift {
	switch {
	case spec.CachedDigests == nil:
		return spec.Options.CorrectDrift
	case spec.CachedDigests.DeployedDrift.IsSet:
		return ptr.To(spec.CachedDigests.DeployedDrift.CorrectDrift)
	}
	return nil
}

func setDeployedDrift(digests *fleet.SpecDigests, drift *fleet.CorrectDrift) {
	digests.DeployedDrift.IsSet, digests.DeployedDrift.CorrectDrift = drift != nil, ptr.Deref(drift, fleet.CorrectDrift{})
}

func isEmpty(field any) bool {
	v := reflect.ValueOf(field)
	return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}

// encodeSources returns the sources as one text, so that equal ones are in memory once. It leaves out those that cannot exist.
func encodeSources(sources []copySource) (none unique.Handle[string]) {
	var text strings.Builder
	for _, s := range sources {
		if (s.kind == secretKind || s.kind == configMapKind) && len(validation.IsDNS1123Subdomain(s.name)) == 0 {
			fmt.Fprintf(&text, "%s/%s\n", s.kind, s.name)
		}
	}
	if text.Len() == 0 {
		return none
	}
	return unique.Make(text.String())
}

// decodeSources returns the sources in a digest.
func decodeSources(digest fleet.FieldDigest) (sources []copySource) {
	if digest.Sources == (unique.Handle[string]{}) {
		return nil
	}
	for line := range strings.Lines(digest.Sources.Value()) {
		kind, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "/")
		sources = append(sources, copySource{kind: kind, name: name})
	}
	return sources
}

// specChanges returns the operations of a JSON patch that make the spec and the labels of before those of after. It replaces each field of the
// spec as a whole, because a merge patch cannot set a value to null, which a value in the options may be. A field that Reduce has dropped from after
// has the digest of the field in before, so it is not replaced.
func specChanges(before, after *fleet.BundleDeployment) (operations []writes.PatchOperation, err error) {
	// Another client may have removed the spec, and a JSON patch cannot add a field to a missing object.
	if isSpecEqual(&before.Spec, &fleet.BundleDeploymentSpec{CachedDigests: &fleet.SpecDigests{}}) {
		return []writes.PatchOperation{{Op: "add", Path: "/spec", Value: after.Spec}, {Op: "add", Path: "/metadata/labels", Value: after.Labels}}, nil
	}
	for _, f := range userFields {
		if sameField(f, &before.Spec, &after.Spec) {
			continue
		}
		operation := writes.PatchOperation{Op: "add", Path: "/spec/" + f.name, Value: f.value(&after.Spec)}
		// encoding/json writes options and stagedOptions, which are structs, even if they are empty.
		if isEmpty(operation.Value) && reflect.TypeOf(operation.Value).Kind() != reflect.Struct {
			operation = writes.PatchOperation{Op: "remove", Path: operation.Path}
		}
		operations = append(operations, operation)
	}
	old, err := otherFields(before.Spec)
	if err != nil {
		return nil, err
	}
	wanted, err := otherFields(after.Spec)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !reflect.DeepEqual(old[name], wanted[name]) {
			operations = append(operations, writes.PatchOperation{Op: "add", Path: "/spec/" + name, Value: wanted[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, found := wanted[name]; !found {
			operations = append(operations, writes.PatchOperation{Op: "remove", Path: "/spec/" + name})
		}
	}
	if !maps.Equal(before.Labels, after.Labels) {
		operations = append(operations, writes.PatchOperation{Op: "add", Path: "/metadata/labels", Value: after.Labels})
	}
	return operations, nil
}

// isSpecEqual reports whether two specs are equal. A comparison costs far less than encoding both.
func isSpecEqual(before, after *fleet.BundleDeploymentSpec) bool {
	a, b := *before, *after
	for _, f := range userFields {
		if !sameField(f, before, after) {
			return false
		}
		f.clear(&a)
		f.clear(&b)
	}
	a.CachedDigests, b.CachedDigests = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// sameField reports whether two specs have the same value in a field. If both specs have digests, it compares these, because Reduce may have
// dropped the field from either.
func sameField(f userField, before, after *fleet.BundleDeploymentSpec) bool {
	if before.CachedDigests == nil || after.CachedDigests == nil {
		return equality.Semantic.DeepEqual(f.value(before), f.value(after))
	}
	return f.digest(before.CachedDigests).Sum == f.digest(after.CachedDigests).Sum
}

// otherFields returns the fields of a spec that users do not fill, as JSON.
func otherFields(spec fleet.BundleDeploymentSpec) (fields map[string]any, err error) {
	for _, f := range userFields {
		f.clear(&spec)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	for _, f := range userFields { // clear leaves an empty object of some
		delete(fields, f.name)
	}
	return fields, nil
}
