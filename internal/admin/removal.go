package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
)

// GetCluster reads a Cluster, with the fields of its status that the hub preserves in an annotation.
func (h *Hub) GetCluster(ctx context.Context, namespace, name string) (*fleet.Cluster, error) {
	cluster, err := h.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, h.explainCluster(err, namespace, name)
	}
	preserve.Restore(cluster)
	return cluster, nil
}

// Remove deletes a Cluster that still has the UID. With dryRun, the API server only says whether it would.
func (h *Hub) Remove(ctx context.Context, namespace, name string, uid types.UID, dryRun bool) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return h.explainCluster(h.Fleet.Clusters(namespace).Delete(ctx, name, options), namespace, name)
}

// leftPatience is how long AwaitRemoved waits for the event about the member, which the hub records after it has removed the Cluster.
const leftPatience = 2 * time.Second

// AwaitRemoved waits until the hub has removed a Cluster, and calls progress with what the hub waits for. left is the message of the hub's
// event if something may be left on the member.
func (h *Hub) AwaitRemoved(ctx context.Context, namespace, name string, uid types.UID, progress func(string)) (left string, err error) {
	shown := ""
	_, err = awaited[*fleet.Cluster]{
		what: fmt.Sprintf("the removal of Cluster %s/%s", namespace, name), get: h.Fleet.Clusters(namespace).Get, name: name,
		status: "the hub has not answered: is a fleet-controller running?",
		check: func(cluster *fleet.Cluster) (bool, string, error) {
			if cluster.UID != uid {
				return false, "", errDeleted // another one has its name
			}
			status := ""
			for _, c := range cluster.Status.Conditions {
				if c.Type == fleet.ConditionProcessed && c.Status != "True" {
					status = c.Reason + ": " + c.Message
				}
			}
			if status != "" && status != shown {
				shown = status
				progress(status)
			}
			return false, status, nil
		},
	}.wait(ctx)
	if !errors.Is(err, errDeleted) {
		return "", err
	}

	ctx, cancel := context.WithTimeout(ctx, leftPatience)
	defer cancel()
	about := fields.Set{"involvedObject.uid": string(uid), "reason": fleet.EventMemberLeft}.AsSelector().String()
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		events, err := h.Kubernetes.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: about})
		if apierrors.IsForbidden(err) {
			return false, err
		}
		if err == nil && len(events.Items) > 0 {
			left = events.Items[0].Message
		}
		return left != "", nil
	})
	if err != nil && !wait.Interrupted(err) {
		return "", fmt.Errorf("the Cluster is removed; whether something is left on the member is not known: %w", err)
	}
	return left, nil
}
