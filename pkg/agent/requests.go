package agent

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/scheme"
)

var errNoList = errors.New("something answered that is no Kubernetes API server")

// probe asks for something the credential must be allowed to do. nil means that it works.
func (h *hub) probe(ctx context.Context) error {
	list := &fleet.BundleDeploymentList{}
	err := h.fleet.FleetV1alpha1().RESTClient().Get().Namespace(h.namespace).Resource("bundledeployments").
		VersionedParams(&metav1.ListOptions{Limit: 1}, scheme.ParameterCodec).
		Do(ctx).Into(list)
	if err == nil && list.ResourceVersion == "" {
		// Every list of an API server has one. Whoever says yes to everything must not cost the bootstrap Secret.
		return errNoList
	}
	return err
}

// createRequest sends a ClusterRegistration.
func (h *hub) createRequest(ctx context.Context, request *fleet.ClusterRegistration) error {
	return h.fleet.FleetV1alpha1().RESTClient().Post().Namespace(request.Namespace).Resource("clusterregistrations").
		Body(request).Do(ctx).Error()
}

// patchClusterStatus sends a merge patch of a Cluster's status.
func (h *hub) patchClusterStatus(ctx context.Context, namespace, name string, patch []byte) error {
	return h.fleet.FleetV1alpha1().RESTClient().Patch(types.MergePatchType).Namespace(namespace).Resource("clusters").
		Name(name).SubResource("status").Body(patch).Do(ctx).Error()
}
