// Package writes changes objects that others write too. It patches the fields that the hub owns and never replaces whole objects.
package writes

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Patcher is the Patch method of client-go's typed client for one kind in one namespace.
type Patcher[T metav1.Object] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (T, error)
}

// Status writes the difference between two versions of an object's status, and nothing if there is none. The patch names the
// resourceVersion it is based on, so it never overwrites a change that this pass has not seen; the work queue retries after a conflict.
// The first status has all fields that are encoded even if they are zero, for example the numbers of a Cluster.
func Status[T metav1.Object](ctx context.Context, client Patcher[T], before, after T) (latest T, written bool, err error) {
	old := statusOf(before)
	if reflect.ValueOf(old).Elem().IsZero() && !reflect.DeepEqual(old, statusOf(after)) {
		old = struct{}{}
	}
	status, err := fleetstatus.MergePatch(old, statusOf(after))
	if err != nil || status == nil {
		return before, false, err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": before.GetResourceVersion(), "uid": before.GetUID()},
		"status":   status,
	})
	if err != nil {
		return before, false, err
	}
	// The API server does not warn of each field that its definition of the kind lacks: crds.Ensure logs such a definition once.
	options := metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}
	latest, err = client.Patch(ctx, before.GetName(), types.MergePatchType, patch, options, "status")
	if err != nil {
		return before, false, fmt.Errorf("writing the status of %s/%s: %w", before.GetNamespace(), before.GetName(), err)
	}
	return latest, true, nil
}

// statusOf returns a pointer to the field Status, which every kind of the hub has: encoding the whole object would cost more than the
// rest of a pass.
func statusOf(object any) any {
	return reflect.Indirect(reflect.ValueOf(object)).FieldByName("Status").Addr().Interface()
}

// Merge sends a merge patch of metadata or spec fields.
func Merge[T metav1.Object](ctx context.Context, client Patcher[T], object T, fields map[string]any) (T, error) {
	patch, err := json.Marshal(fields)
	if err != nil {
		return object, err
	}
	latest, err := client.Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return object, fmt.Errorf("patching %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return latest, nil
}
