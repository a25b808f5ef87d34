package admin

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Quarantine cuts the agent of a Cluster off from the hub, or gives it its rights back.
func (h *Hub) Quarantine(ctx context.Context, namespace, name string, quarantined bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"quarantined":%t}}`, quarantined)
	_, err := h.Fleet.Clusters(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return explainCluster(err, namespace, name)
}

// AwaitQuarantine waits until the hub says of the Cluster what Quarantine has asked for.
func (h *Hub) AwaitQuarantine(ctx context.Context, namespace, name string, quarantined bool) error {
	_, err := await(ctx, h.Fleet.Clusters(namespace), &fleet.Cluster{}, name, false, func(cluster *fleet.Cluster) (bool, error) {
		said := conditionReason(cluster, fleet.ConditionRegistered) == fleet.ReasonQuarantined
		return said == quarantined, nil
	})
	if err != nil {
		return waitError(ctx, fmt.Sprintf("Cluster %s/%s", namespace, name), "the hub has not answered: is a fleet-controller running?", err)
	}
	return nil
}

func conditionReason(cluster *fleet.Cluster, kind string) string {
	for _, c := range cluster.Status.Conditions {
		if c.Type == kind {
			return c.Reason
		}
	}
	return ""
}

// Identity is the clientID of a Cluster.
func (h *Hub) Identity(ctx context.Context, namespace, name string) (string, error) {
	cluster, err := h.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return "", explainCluster(err, namespace, name)
	case cluster.Spec.ClientID == "":
		return "", fmt.Errorf("Cluster %s/%s has no clientID yet: set spec.clientID, or wait for the hub, which does so for a cluster it has a kubeconfig of", namespace, name)
	}
	return cluster.Spec.ClientID, nil
}

// Revoke deletes the ServiceAccounts of a Cluster's agents: from then on the API server itself knows none of their tokens,
// whether a hub runs or not, and a hub makes none of them again. It returns the names of the requests they were made for.
func (h *Hub) Revoke(ctx context.Context, namespace, name string) (requests []string, err error) {
	if _, err := h.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return nil, explainCluster(err, namespace, name)
	}
	accounts := h.Kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(namespace, name))
	list, err := accounts.List(ctx, metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue})
	if err != nil {
		return nil, fmt.Errorf("list the ServiceAccounts of Cluster %s/%s: %w", namespace, name, err)
	}
	for _, account := range list.Items {
		err := accounts.Delete(ctx, account.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &account.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("delete ServiceAccount %s/%s: %w", account.Namespace, account.Name, err)
		}
		requests = append(requests, account.Annotations[fleet.ClusterRegistrationAnnotation])
	}
	slices.Sort(requests)
	return requests, nil
}

func explainCluster(err error, namespace, name string) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no Cluster %s/%s: `muster clusters -A` shows all there are", namespace, name)
	case err != nil:
		return fmt.Errorf("Cluster %s/%s: %w", namespace, name, err)
	}
	return nil
}
