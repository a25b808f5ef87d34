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
	"github.com/muster-fleet/muster/pkg/registration"
)

// Difference is how an object on the cluster is not what was deployed; the zero value is none.
type Difference struct {
	// Missing says that the object does not exist.
	Missing bool
	// Patch is the JSON merge patch that would undo the difference. Of a Secret it shows no values.
	Patch string
}

// None says that the object is as it should be.
func (d Difference) None() bool { return d == Difference{} }

// Compare asks the API server what applying the object again would change; nothing is changed. live is the object as a
// cache has it, or nil; it costs one request when that is current.
func (c *Client) Compare(ctx context.Context, o Object, live *unstructured.Unstructured, ignored []fleet.ComparePatch) (Difference, error) {
	if ignoresAll(o.Desired, ignored) {
		return Difference{}, nil
	}
	if live == nil {
		var err error
		if live, err = c.Live(ctx, o); live == nil {
			return Difference{Missing: err == nil}, err
		}
	}
	applied, err := dryRun(ctx, c.dynamic, o)
	if apierrors.IsInvalid(err) {
		return Difference{Patch: Explain(err)}, nil
	}
	if err != nil {
		return Difference{}, err
	}
	if applied.GetResourceVersion() != live.GetResourceVersion() {
		if live, err = c.Live(ctx, o); live == nil {
			return Difference{Missing: err == nil}, err
		}
	}
	return difference(live, applied, ignored)
}

// Live is the object as the cluster has it, or nil.
func (c *Client) Live(ctx context.Context, o Object) (*unstructured.Unstructured, error) {
	live, err := c.dynamic.Resource(o.Resource).Namespace(o.Desired.GetNamespace()).Get(ctx, o.Desired.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return live, err
}

func dryRun(ctx context.Context, client dynamic.Interface, o Object) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(o.Desired)
	if err != nil {
		return nil, err
	}
	return client.Resource(o.Resource).Namespace(o.Desired.GetNamespace()).Patch(ctx, o.Desired.GetName(), types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: registration.FieldManager, Force: ptr.To(true), DryRun: []string{metav1.DryRunAll}})
}

func difference(live, applied *unstructured.Unstructured, ignored []fleet.ComparePatch) (Difference, error) {
	is, err := bare(live, ignored)
	if err != nil {
		return Difference{}, err
	}
	should, err := bare(applied, ignored)
	if err != nil || equality.Semantic.DeepEqual(is, should) {
		return Difference{}, err
	}
	patch, err := mergePatch(is, should)
	if err != nil {
		return Difference{}, err
	}
	if live.GetKind() == "Secret" {
		hide(patch, "data", "stringData")
	}
	text, err := json.Marshal(patch)
	if len(text) > messageMax {
		text = append(text[:messageMax], "…"...)
	}
	return Difference{Patch: string(text)}, err
}

// bare is an object without what the API server counts and what the options say not to compare.
func bare(o *unstructured.Unstructured, ignored []fleet.ComparePatch) (map[string]any, error) {
	o = o.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	return ignore(o, ignored)
}

func mergePatch(is, should map[string]any) (map[string]any, error) {
	from, err := json.Marshal(is)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(should)
	if err != nil {
		return nil, err
	}
	data, err := jsonpatch.CreateMergePatch(from, to)
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	return patch, json.Unmarshal(data, &patch)
}

func hide(patch map[string]any, fields ...string) {
	for _, field := range fields {
		values, _ := patch[field].(map[string]any)
		for key := range values {
			values[key] = "(hidden)"
		}
	}
}
