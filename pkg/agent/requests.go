package agent

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

var errNoList = errors.New("something answered that is no Kubernetes API server")

// probe asks for something the credential must be allowed to do. nil means that it works.
func (h *hub) probe(ctx context.Context) error {
	list, err := h.fleet.FleetV1alpha1().BundleDeployments(h.namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err == nil && list.ResourceVersion == "" {
		// Every list of an API server has one. Whoever says yes to everything must not cost the bootstrap Secret.
		return errNoList
	}
	return err
}

// createRequest sends a ClusterRegistration.
func (h *hub) createRequest(ctx context.Context, request *fleet.ClusterRegistration) error {
	_, err := h.fleet.FleetV1alpha1().ClusterRegistrations(request.Namespace).Create(ctx, request, metav1.CreateOptions{})
	return err
}

// patchClusterStatus sends a merge patch of a Cluster's status.
func (h *hub) patchClusterStatus(ctx context.Context, namespace, name string, patch []byte) error {
	_, err := h.fleet.FleetV1alpha1().Clusters(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
