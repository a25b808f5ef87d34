package admission

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
)

// mutatingVersions are the versions of MutatingAdmissionPolicies, the best first.
var mutatingVersions = []string{"v1", "v1beta1"}

// ServedVersion is the best version in which the API server serves MutatingAdmissionPolicies, "" when it serves none.
func ServedVersion(api discovery.ServerResourcesInterface) (string, error) {
	for _, version := range mutatingVersions {
		kinds, err := api.ServerResourcesForGroupVersion(Group + "/" + version)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("asking which admission policies the API server serves: %w", err)
		}
		if slices.ContainsFunc(kinds.APIResources, func(r metav1.APIResource) bool { return r.Kind == KindMutating }) {
			return version, nil
		}
	}
	return "", nil
}

// Install creates those of the policies that are missing, and gives those that differ the spec they should have. Labels and
// annotations of one that exists stay as they are, for by them Helm knows its own.
func Install(ctx context.Context, client dynamic.Interface, policies []*unstructured.Unstructured) error {
	for _, policy := range policies {
		// Kubernetes writes the status of a policy when it has looked at its expressions, which may be between our look and our write.
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return install(ctx, client, policy) })
		if err != nil {
			return fmt.Errorf("installing %s %s: %w", policy.GetKind(), policy.GetName(), err)
		}
	}
	return nil
}

func install(ctx context.Context, client dynamic.Interface, policy *unstructured.Unstructured) error {
	resource := client.Resource(Resource(policy))
	existing, err := resource.Get(ctx, policy.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = resource.Create(ctx, policy, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // by another hub a moment ago; what is wrong with it is seen when it is watched
		}
		return err
	}
	if err != nil || sameSpec(policy, existing) && watched(existing) {
		return err
	}
	changed := existing.DeepCopy()
	changed.Object["spec"] = policy.Object["spec"]
	changed.SetLabels(withManagedLabel(changed.GetLabels()))
	_, err = resource.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}
