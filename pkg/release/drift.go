package release

import (
	"context"
	"encoding/json"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Difference is how an object differs from what was deployed; the zero value means that it does not.
type Difference struct {
	// Missing: the object does not exist.
	Missing bool
	// Patch is the JSON merge patch that would undo the difference. It does not show the values of a Secret.
	Patch string
}

// None reports whether there is no difference.
func (d Difference) None() bool { return d == Difference{} }

// Compare asks the API server, with a dry run, what applying the object again would change. live is the cached object or nil;
// if it is current, Compare sends one request.
func (c *Client) Compare(ctx context.Context, o Object, live *unstructured.Unstructured, ignored []fleet.ComparePatch) (Difference, error) {
	if ignoresObject(o.Desired, ignored) {
		return Difference{}, nil
	}
	if live == nil {
		var err error
		if live, err = c.get(ctx, o); live == nil {
			return Difference{Missing: err == nil}, err
		}
	}
	applied, err := applyDryRun(ctx, c.dynamic, o)
	if apierrors.IsInvalid(err) {
		return Difference{Patch: Explain(err)}, nil
	}
	if err != nil {
		return Difference{}, err
	}
	if applied.GetResourceVersion() != live.GetResourceVersion() {
		if live, err = c.get(ctx, o); live == nil {
			return Difference{Missing: err == nil}, err
		}
	}
	return difference(live, applied, ignored)
}

// get returns the object as the cluster has it, or nil.
func (c *Client) get(ctx context.Context, o Object) (*unstructured.Unstructured, error) {
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
		metav1.PatchOptions{FieldManager: registration.FieldManager, Force: ptr.To(true), DryRun: []string{metav1.DryRunAll}})
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

// stripped returns an object without what the API server sets and without what the ComparePatches ignore.
func stripped(o *unstructured.Unstructured, ignored []fleet.ComparePatch) (map[string]any, error) {
	o = o.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	for _, p := range ignored {
		if !concerns(p, o) {
			continue
		}
		changed, err := applyComparePatch(o.Object, p)
		if err != nil {
			return nil, invalid("diff.comparePatches of %s %s: %v", o.GetKind(), o.GetName(), err)
		}
		o.Object = changed
	}
	return o.Object, nil
}

// concerns reports whether a ComparePatch is about the object; an empty field matches everything.
func concerns(p fleet.ComparePatch, o *unstructured.Unstructured) bool {
	matches := func(pattern, value string) bool { return pattern == "" || pattern == value }
	return matches(p.Kind, o.GetKind()) && matches(p.APIVersion, o.GetAPIVersion()) &&
		matches(p.Namespace, o.GetNamespace()) && matches(p.Name, o.GetName())
}

// ignoresObject reports whether a ComparePatch has the operation "ignore", which JSON patch does not know: the object is not
// compared at all.
func ignoresObject(o *unstructured.Unstructured, patches []fleet.ComparePatch) bool {
	for _, p := range patches {
		for _, operation := range p.Operations {
			if operation.Op == "ignore" && concerns(p, o) {
				return true
			}
		}
	}
	return false
}

// applyComparePatch returns the object with the JSON pointers removed and the operations applied, and leaves the original
// unchanged. The value of an operation is JSON, or else the text itself.
func applyComparePatch(object map[string]any, p fleet.ComparePatch) (map[string]any, error) {
	var operations []map[string]any
	for _, pointer := range p.JSONPointers {
		operations = append(operations, map[string]any{"op": "remove", "path": pointer})
	}
	for _, o := range p.Operations {
		operation := map[string]any{"op": o.Op, "path": o.Path}
		if o.Op != "remove" {
			var value any
			if json.Unmarshal([]byte(o.Value), &value) != nil {
				value = o.Value
			}
			operation["value"] = value
		}
		operations = append(operations, operation)
	}
	data, err := json.Marshal(operations)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, err
	}
	document, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	options := jsonpatch.NewApplyOptions()
	options.AllowMissingPathOnRemove, options.EnsurePathExistsOnAdd = true, true
	if document, err = patch.ApplyWithOptions(document, options); err != nil {
		return nil, err
	}
	changed := map[string]any{}
	return changed, json.Unmarshal(document, &changed)
}
