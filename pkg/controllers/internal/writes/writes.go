// Package writes has the forms of the hub's writes. It patches objects that other programs write too with only the fields that the hub owns,
// never with a whole object, creates namespaces, and deletes only the object that was read.
package writes

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// IfUID are the options of a deletion that must not delete another object of the same name.
func IfUID(object metav1.Object) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.GetUID()))}
}

// Patcher is the Patch method of client-go's typed client for one kind in one namespace.
type Patcher[T metav1.Object] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (T, error)
}

// Status patches the status of an object with the difference between before and after, and sends nothing if they are equal. The patch
// contains the resourceVersion of before, so the API server refuses it with a conflict if the object has changed since; the work
// queue then retries. If before has no status, the patch also contains the zero values of fields without omitempty, such as the numbers of
// a Cluster.
func Status[T metav1.Object](ctx context.Context, client Patcher[T], before, after T) (latest T, changed bool, err error) {
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
	// With Ignore, the API server does not return a warning with each write for fields that an older CustomResourceDefinition lacks.
	// crds.Ensure logs these fields once.
	options := metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}
	latest, err = client.Patch(ctx, before.GetName(), types.MergePatchType, patch, options, "status")
	if err != nil {
		return before, false, fmt.Errorf("writing the status of %s/%s: %w", before.GetNamespace(), before.GetName(), err)
	}
	return latest, true, nil
}

// statusOf returns a pointer to the field Status, which every kind of the hub has. Comparing only the status is cheaper than encoding whole
// objects, which would cost more than the rest of a reconcile.
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

// RemoveFinalizer removes a finalizer from an object that is being deleted. The object may be gone already.
func RemoveFinalizer[T metav1.Object](ctx context.Context, client Patcher[T], object T, finalizer string) (T, error) {
	left := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == finalizer })
	latest, err := Merge(ctx, client, object, map[string]any{
		"metadata": map[string]any{"finalizers": left, "resourceVersion": object.GetResourceVersion()},
	})
	if apierrors.IsNotFound(err) {
		return object, nil
	}
	return latest, err
}

// EnsureNamespace creates a namespace if it does not exist. It reads first: the start of a hub that has nothing to do writes nothing.
func EnsureNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	namespaces := client.CoreV1().Namespaces()
	_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating Namespace %s: %w", name, err)
	}
	return nil
}

// IsMissing distinguishes "there is no such object" from "there is no such kind", which has the same status code: without the
// CustomResourceDefinition each Cluster would seem to be missing.
func IsMissing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

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
