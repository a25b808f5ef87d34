package cluster

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

// finalize removes the agent's Bundle and the cluster namespace, with the agent's identity in it, before it lets the
// Cluster go. Requests and tokens follow by owner reference.
func (h *handler) finalize(ctx context.Context, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	if !slices.Contains(cluster.Finalizers, fleet.ClusterFinalizer) {
		return cluster, nil
	}
	if err := h.deleteBundle(cluster); err != nil {
		return cluster, err
	}
	if err := h.deleteNamespace(ctx, cluster); err != nil {
		return cluster, err
	}
	left := slices.DeleteFunc(slices.Clone(cluster.Finalizers), func(f string) bool { return f == fleet.ClusterFinalizer })
	latest, err := writes.Merge(h.clusters, cluster, map[string]any{
		"metadata": map[string]any{"finalizers": left, "resourceVersion": cluster.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return cluster, nil
	}
	return latest, err
}

func (h *handler) deleteBundle(cluster *fleet.Cluster) error {
	name := registration.AgentBundleName(cluster.Name)
	err := h.Fleet.Bundle().Delete(cluster.Namespace, name, &metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Bundle %s/%s of the deleted Cluster: %w", cluster.Namespace, name, err)
	}
	return nil
}

// deleteNamespace computes which namespace it is and looks whose it is: a status that an agent could write must never
// decide which namespace the hub deletes.
func (h *handler) deleteNamespace(ctx context.Context, cluster *fleet.Cluster) error {
	name := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	client := h.Kubernetes.CoreV1().Namespaces()
	existing, err := h.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		existing, err = client.Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading Namespace %s of the deleted Cluster: %w", name, err)
	case !isFor(existing, cluster), existing.DeletionTimestamp != nil:
		return nil
	}
	err = client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &existing.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Namespace %s of the deleted Cluster: %w", name, err)
	}
	return nil
}
