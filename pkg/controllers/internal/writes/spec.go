package writes

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Spec writes the spec and the labels of after, and nothing if before has the same. It replaces each of the two as a whole: a merge patch
// cannot set a value to null, which a Helm value may be. Like Status, it never overwrites a change that this pass has not seen.
func Spec[T metav1.Object](ctx context.Context, client Patcher[T], before, after T) (latest T, written bool, err error) {
	old, err := specAndLabels(before)
	if err != nil {
		return before, false, err
	}
	wanted, err := specAndLabels(after)
	if err != nil {
		return before, false, err
	}
	operations := []patchOperation{{"replace", "/metadata/resourceVersion", before.GetResourceVersion()}}
	for _, path := range []string{"/metadata/labels", "/spec"} {
		if !reflect.DeepEqual(old[path], wanted[path]) {
			operations = append(operations, patchOperation{"add", path, wanted[path]})
		}
	}
	if len(operations) == 1 {
		return before, false, nil
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return before, false, err
	}
	latest, err = client.Patch(ctx, before.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return before, false, fmt.Errorf("patching %s/%s: %w", before.GetNamespace(), before.GetName(), err)
	}
	return latest, true, nil
}

// patchOperation is one of a JSON patch, RFC 6902.
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func specAndLabels(object metav1.Object) (map[string]any, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields struct {
		Metadata struct {
			Labels any `json:"labels"`
		} `json:"metadata"`
		Spec any `json:"spec"`
	}
	err = json.Unmarshal(data, &fields)
	return map[string]any{"/metadata/labels": fields.Metadata.Labels, "/spec": fields.Spec}, err
}
