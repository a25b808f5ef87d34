package release

import (
	"context"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Difference is the difference between an object and the deployed one; the zero value means none.
type Difference struct {
	// Missing is true if the object does not exist.
	Missing bool
	// Foreign is true if an object of that name exists, but belongs to another owner. Missing is true as well.
	Foreign bool
	// Adopted is true if the object belongs to another release. Foreign is true as well. Correct then changes the object only with takeOwnership.
	Adopted bool
	// Tolerated is true if the object does not exist, and a ComparePatch ignores that.
	Tolerated bool
	// Patch is the JSON merge patch that would undo the difference. It does not show the values of a Secret.
	Patch string
}

// None reports whether there is no difference.
func (d Difference) None() bool { return !d.Missing && d.Patch == "" }

// Tolerances define which differences are not drift.
type Tolerances struct {
	// Patches are the ComparePatches of the options.
	Patches []fleet.ComparePatch
	// Release are the objects of the release: a HorizontalPodAutoscaler among them sets the replicas of another.
	Release []Object
}

// Compare determines, with a dry run of the API server, what would change if the object were applied again. live is the cached object or nil;
// if it is current, Compare sends one request.
func (c *Client) Compare(ctx context.Context, o Object, live *unstructured.Unstructured, tolerances Tolerances) (Difference, error) {
	missing := Difference{Missing: true}
	if toleratesMissing(o.Desired, tolerances.Patches) {
		missing = Difference{Tolerated: true}
	}
	if live == nil {
		var err error
		if live, err = c.Read(ctx, o); err != nil {
			return Difference{}, err
		} else if live == nil {
			return missing, nil
		}
	}
	name, namespace := marksOf(live)
	ownName, ownNamespace := marksOf(o.Desired)
	isAdopted := name != "" && (name != ownName || namespace != ownNamespace)
	if isAdopted || !sameSet(o.Desired, live) {
		missing.Foreign, missing.Adopted = missing.Missing, missing.Missing && isAdopted
		return missing, nil
	}
	applied, err := applyDryRun(ctx, c.dynamic, o)
	if apierrors.IsInvalid(err) {
		return Difference{Patch: Explain(err)}, nil
	}
	if err != nil {
		return Difference{}, err
	}
	if applied.GetResourceVersion() != live.GetResourceVersion() {
		if live, err = c.Read(ctx, o); err != nil {
			return Difference{}, err
		} else if live == nil {
			return missing, nil
		}
	}
	found := live // with its replicas, which removeForeignFields removes from both copies
	live, applied = live.DeepCopy(), applied.DeepCopy()
	for _, compared := range []*unstructured.Unstructured{live, applied} {
		removeForeignFields(compared, o.Desired, tolerances.Release, found)
	}
	return difference(live, applied, tolerances.Patches)
}

// sameSet reports whether an object still has the SetHashLabel with which it was deployed. Earlier agents deployed objects without one.
func sameSet(desired, live *unstructured.Unstructured) bool {
	set := desired.GetLabels()[SetHashLabel]
	return set == "" || live.GetLabels()[SetHashLabel] == set
}

// removeForeignFields removes the fields of an object that a controller of the cluster sets, even if the release has them too:
// replicas that a HorizontalPodAutoscaler of the release may have chosen, caBundle where the release has none, and the rules of
// an aggregated ClusterRole.
func removeForeignFields(o, desired *unstructured.Unstructured, release []Object, live *unstructured.Unstructured) {
	group, kind := desired.GroupVersionKind().Group, desired.GetKind()
	switch {
	case group == "rbac.authorization.k8s.io" && kind == "ClusterRole":
		if _, aggregated, _ := unstructured.NestedMap(desired.Object, "aggregationRule"); aggregated {
			unstructured.RemoveNestedField(o.Object, "rules")
		}
	case group == "admissionregistration.k8s.io":
		removeCABundles(o, desired)
	}
	replicas, found, err := unstructured.NestedInt64(live.Object, "spec", "replicas")
	if found && err == nil && slices.ContainsFunc(release, func(scaler Object) bool { return allowsReplicas(scaler.Desired, desired, replicas) }) {
		unstructured.RemoveNestedField(o.Object, "spec", "replicas")
	}
}

// allowsReplicas reports whether scaler is a HorizontalPodAutoscaler of the target that may have set this number of replicas.
func allowsReplicas(scaler, target *unstructured.Unstructured, replicas int64) bool {
	if scaler.GetKind() != "HorizontalPodAutoscaler" || scaler.GetNamespace() != target.GetNamespace() {
		return false
	}
	ref, _, _ := unstructured.NestedStringMap(scaler.Object, "spec", "scaleTargetRef")
	group := schema.FromAPIVersionAndKind(ref["apiVersion"], ref["kind"]).GroupKind()
	least, set, _ := unstructured.NestedInt64(scaler.Object, "spec", "minReplicas")
	if !set {
		least = 1
	}
	most, _, _ := unstructured.NestedInt64(scaler.Object, "spec", "maxReplicas")
	return group == target.GroupVersionKind().GroupKind() && ref["name"] == target.GetName() && least <= replicas && replicas <= most
}

// removeCABundles removes the CA bundles of the webhooks for which the release has none.
func removeCABundles(o, desired *unstructured.Unstructured) {
	bundle := func(webhook any) (name, caBundle string, config map[string]any) {
		fields, _ := webhook.(map[string]any)
		config, _ = fields["clientConfig"].(map[string]any)
		name, _ = fields["name"].(string)
		caBundle, _ = config["caBundle"].(string)
		return name, caBundle, config
	}
	webhooks, _, _ := unstructured.NestedFieldNoCopy(o.Object, "webhooks")
	list, _ := webhooks.([]any)
	wanted, _, _ := unstructured.NestedSlice(desired.Object, "webhooks")
	for _, webhook := range list {
		name, _, config := bundle(webhook)
		isSet := slices.ContainsFunc(wanted, func(w any) bool {
			wantedName, caBundle, _ := bundle(w)
			return wantedName == name && caBundle != ""
		})
		if !isSet {
			delete(config, "caBundle")
		}
	}
}

// Read returns an object of a release as it is on the cluster; nil if it does not exist.
func (c *Client) Read(ctx context.Context, o Object) (*unstructured.Unstructured, error) {
	live, err := c.dynamic.Resource(o.Resource).Namespace(o.Desired.GetNamespace()).Get(ctx, o.Desired.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return live, err
}

func applyDryRun(ctx context.Context, client dynamic.Interface, o Object) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(o.Desired)
	if err != nil {
		return nil, err
	}
	return client.Resource(o.Resource).Namespace(o.Desired.GetNamespace()).Patch(ctx, o.Desired.GetName(), types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: o.Manager, Force: ptr.To(true), DryRun: []string{metav1.DryRunAll}})
}

func difference(live, applied *unstructured.Unstructured, ignored []fleet.ComparePatch) (Difference, error) {
	is, err := stripped(live, ignored)
	if err != nil {
		return Difference{}, err
	}
	should, err := stripped(applied, ignored)
	if err != nil || equality.Semantic.DeepEqual(is, should) {
		return Difference{}, err
	}
	data, err := fleetstatus.MergePatch(is, should)
	if err != nil || data == nil {
		return Difference{}, err
	}
	if live.GetKind() == "Secret" {
		if data, err = withoutSecretValues(data); err != nil {
			return Difference{}, err
		}
	}
	if len(data) > messageMax {
		data = append(data[:messageMax], "…"...)
	}
	return Difference{Patch: string(data)}, nil
}

func withoutSecretValues(data []byte) ([]byte, error) {
	patch := map[string]any{}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	for _, field := range []string{"data", "stringData"} {
		values, _ := patch[field].(map[string]any)
		for key := range values {
			values[key] = "(hidden)"
		}
	}
	return json.Marshal(patch)
}

// stripped returns an object without the fields that the API server sets, and without those that the ComparePatches ignore.
func stripped(o *unstructured.Unstructured, ignored []fleet.ComparePatch) (map[string]any, error) {
	o = o.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	for _, p := range ignored {
		changed, err := applyComparePatch(o, p)
		if err != nil {
			return nil, invalid("diff.comparePatches of %s %s: %v", o.GetKind(), o.GetName(), err)
		}
		o.Object = changed
	}
	return o.Object, nil
}

// ignoreOperation is an operation of a ComparePatch that JSON patch does not know: the object may be missing.
const ignoreOperation = "ignore"

// toleratesMissing reports whether a ComparePatch has the operation "ignore" for the object. The name may be a regular
// expression, and an empty namespace matches all.
func toleratesMissing(o *unstructured.Unstructured, patches []fleet.ComparePatch) bool {
	return slices.ContainsFunc(patches, func(p fleet.ComparePatch) bool {
		ignores := slices.ContainsFunc(p.Operations, func(operation fleet.Operation) bool { return operation.Op == ignoreOperation })
		if !ignores || p.APIVersion != o.GetAPIVersion() || p.Kind != o.GetKind() || p.Namespace != "" && p.Namespace != o.GetNamespace() {
			return false
		}
		matched, err := regexp.MatchString(p.Name, o.GetName())
		return p.Name == o.GetName() || err == nil && matched
	})
}

// applyComparePatch returns the fields of the object with the JSON pointers removed and the operations applied, and leaves the
// original unchanged. The value of an operation is JSON, or else the text itself. An operation that does not apply to the object, such as the
// replacement of a field that it lacks, changes nothing and does not prevent the others.
func applyComparePatch(o *unstructured.Unstructured, p fleet.ComparePatch) (map[string]any, error) {
	var operations []map[string]any
	if pointersConcern(p, o) {
		for _, pointer := range p.JSONPointers {
			operations = append(operations, map[string]any{"op": "remove", "path": pointer})
		}
	}
	if operationsConcern(p, o) {
		for _, wanted := range p.Operations {
			operation := map[string]any{"op": wanted.Op, "path": wanted.Path}
			if wanted.Op == ignoreOperation {
				continue
			}
			if wanted.Op != "remove" {
				var value any
				if json.Unmarshal([]byte(wanted.Value), &value) != nil {
					value = wanted.Value
				}
				operation["value"] = value
			}
			operations = append(operations, operation)
		}
	}
	if len(operations) == 0 {
		return o.Object, nil
	}
	document, err := json.Marshal(o.Object)
	if err != nil {
		return nil, err
	}
	options := jsonpatch.NewApplyOptions()
	options.AllowMissingPathOnRemove, options.EnsurePathExistsOnAdd = true, true
	padding := paddingMax
	for _, operation := range operations {
		data, err := json.Marshal([]any{operation})
		if err != nil {
			return nil, err
		}
		patch, err := jsonpatch.DecodePatch(data)
		if err != nil {
			return nil, err
		}
		if path, _ := operation["path"].(string); operation["op"] == "add" {
			added := paddingOf(document, path)
			if added > padding {
				continue
			}
			padding -= added
		}
		if patched, err := patch.ApplyWithOptions(document, options); err == nil {
			document = patched
		}
	}
	changed := map[string]any{}
	return changed, json.Unmarshal(document, &changed)
}

// paddingMax is the number of elements by which the operations of a ComparePatch may lengthen the arrays of an object. The library adds them one by one, and
// copies the array each time.
const paddingMax = 100

// paddingOf returns the number of elements by which the addition of an element at the path would lengthen arrays, besides that element. Those of a path that
// does not exist count as well, as far as they can be indexes of arrays.
func paddingOf(document []byte, path string) (added int) {
	elements := strings.Split(path, "/")
	isIndex := func(element string) bool {
		index, err := strconv.Atoi(element)
		return err == nil && index > 0
	}
	if !slices.ContainsFunc(elements, isIndex) {
		return 0
	}
	var at any
	if json.Unmarshal(document, &at) != nil {
		return paddingMax + 1
	}
	unescaped := strings.NewReplacer("~1", "/", "~0", "~")
	for _, element := range elements[1:] {
		index, err := strconv.Atoi(element)
		length := 0 // of an array that does not exist yet
		switch container := at.(type) {
		case map[string]any:
			at = container[unescaped.Replace(element)]
			continue
		case []any:
			if length = len(container); err == nil && index >= 0 && index < length {
				at = container[index]
				continue
			}
		}
		at = nil
		if err == nil && index > length {
			added = min(added+index-length, paddingMax+1) // no overflow
		}
	}
	return added
}

// operationsConcern reports whether the operations of a ComparePatch apply to the object: all of its names have to be equal.
func operationsConcern(p fleet.ComparePatch, o *unstructured.Unstructured) bool {
	return p.APIVersion == o.GetAPIVersion() && p.Kind == o.GetKind() && p.Namespace == o.GetNamespace() && p.Name == o.GetName()
}

// pointersConcern reports whether the JSON pointers of a ComparePatch apply to the object. Group and kind may be patterns; an
// empty namespace or name matches all.
func pointersConcern(p fleet.ComparePatch, o *unstructured.Unstructured) bool {
	pattern, kind := schema.FromAPIVersionAndKind(p.APIVersion, p.Kind), o.GroupVersionKind()
	matches := func(pattern, value string) bool {
		matched, err := path.Match(pattern, value)
		return err == nil && matched
	}
	return matches(pattern.Group, kind.Group) && matches(pattern.Kind, kind.Kind) &&
		(p.Namespace == "" || p.Namespace == o.GetNamespace()) && (p.Name == "" || p.Name == o.GetName())
}
