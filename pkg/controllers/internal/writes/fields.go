package writes

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PatchOperation is one operation of a JSON patch (RFC 6902).
type PatchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Fields sends a JSON patch of fields of an object, and nothing without an operation. Like Status, it never overwrites a change that this pass
// has not seen.
func Fields[T metav1.Object](ctx context.Context, client Patcher[T], object T, operations []PatchOperation) (latest T, changed bool, err error) {
	if len(operations) == 0 {
		return object, false, nil
	}
	patch, err := json.Marshal(append([]PatchOperation{{"replace", "/metadata/resourceVersion", object.GetResourceVersion()}}, operations...))
	if err != nil {
		return object, false, err
	}
	latest, err = client.Patch(ctx, object.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return object, false, fmt.Errorf("patching %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return latest, true, nil
}
