package release

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ensureNamespace makes the namespace of a release, or gives the one that is there the labels and annotations of the
// options; others it has stay.
func (c *Client) ensureNamespace(ctx context.Context, name string, o fleet.BundleDeploymentOptions) error {
	namespaces := c.core.CoreV1().Namespaces()
	existing, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		created := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: o.NamespaceLabels, Annotations: o.NamespaceAnnotations}}
		_, err = namespaces.Create(ctx, created, metav1.CreateOptions{FieldManager: registration.FieldManager})
		if apierrors.IsAlreadyExists(err) {
			return nil // the next deployment looks at its labels
		}
	} else if err == nil && !(has(existing.Labels, o.NamespaceLabels) && has(existing.Annotations, o.NamespaceAnnotations)) {
		var patch []byte
		patch, err = namespacePatch(o)
		if err == nil {
			_, err = namespaces.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
		}
	}
	if err != nil {
		return fmt.Errorf("namespace %s of the release: %w", name, err)
	}
	return nil
}

// namespacePatch leaves out what the options say nothing about: in a merge patch, null removes all there is, whoever put it
// there.
func namespacePatch(o fleet.BundleDeploymentOptions) ([]byte, error) {
	metadata := map[string]any{}
	if len(o.NamespaceLabels) > 0 {
		metadata["labels"] = o.NamespaceLabels
	}
	if len(o.NamespaceAnnotations) > 0 {
		metadata["annotations"] = o.NamespaceAnnotations
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}

func has(all, some map[string]string) bool {
	for key, value := range some {
		if got, ok := all[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// deleteNamespace removes the namespace of a release, except those that a cluster or its agent cannot be without, and those
// in which another release is, whoever made it: it would go with everything it runs.
func (c *Client) deleteNamespace(ctx context.Context, name, release string, protected ...string) error {
	kept := append([]string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}, protected...)
	if slices.Contains(kept, name) {
		return nil
	}
	others, err := c.meta.Resource(secrets).Namespace(name).List(ctx, metav1.ListOptions{
		LabelSelector: helmOwner + "=helm," + helmName + "!=" + release, Limit: 1,
	})
	if err != nil {
		return fmt.Errorf("looking for other Helm releases in namespace %s: %w", name, err)
	}
	if len(others.Items) > 0 {
		return nil
	}
	err = c.core.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
