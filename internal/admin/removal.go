package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
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

// Remove deletes a Cluster if it still has the UID. With dryRun, the API server only checks whether it would.
func (h *Hub) Remove(ctx context.Context, namespace, name string, uid types.UID, dryRun bool) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return h.explainCluster(h.Fleet.Clusters(namespace).Delete(ctx, name, options), namespace, name)
}

// RemoveKeepingWorkloads deletes a Cluster after its agent has applied all BundleDeployments with keepResources, so that neither agent nor hub
// removes the deployed objects. If that has not happened when ctx ends, it returns an error, and the Cluster stays. It calls progress with the
// reason for which it waits.
func (h *Hub) RemoveKeepingWorkloads(ctx context.Context, cluster *fleet.Cluster, progress func(string)) (err error) {
	title := fmt.Sprintf("Cluster %s/%s", cluster.Namespace, cluster.Name)
	if err := h.Remove(ctx, cluster.Namespace, cluster.Name, cluster.UID, true); err != nil {
		return err // before anything is changed
	}
	isSet := cluster.Annotations[fleet.KeepWorkloadsAnnotation] == fleet.KeepWorkloadsValue
	if !isSet {
		if err := h.annotateKeep(ctx, cluster, fleet.KeepWorkloadsValue); err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
	}

	hubVersion, err := h.version(ctx, registration.DefaultSystemNamespace)
	if err != nil {
		hubVersion = "" // only messages contain it, and the user may lack the right to read it
	}
	shown := ""
	_, err = awaited[*fleet.BundleDeploymentList]{
		what: title + " with --keep-workloads", name: cluster.Name,
		get: func(ctx context.Context, _ string, _ metav1.GetOptions) (*fleet.BundleDeploymentList, error) {
			namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
			return h.Fleet.BundleDeployments(namespace).List(ctx, metav1.ListOptions{})
		},
		check: func(list *fleet.BundleDeploymentList) (bool, string, error) {
			waits := notKept(list.Items, cluster, hubVersion)
			if waits != "" && waits != shown {
				shown = waits
				progress(waits)
			}
			return waits == "", waits, nil
		},
	}.wait(ctx)
	if err != nil {
		if !isSet {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, ignoreNotFound(h.annotateKeep(ctx, cluster, nil)))
		}
		return fmt.Errorf("nothing was removed: %w", err)
	}
	return h.Remove(ctx, cluster.Namespace, cluster.Name, cluster.UID, false)
}

// annotateKeep sets KeepWorkloadsAnnotation, or removes it if the value is nil.
func (h *Hub) annotateKeep(ctx context.Context, cluster *fleet.Cluster, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": cluster.UID, "annotations": map[string]any{fleet.KeepWorkloadsAnnotation: value},
	}})
	if err != nil {
		return err
	}
	_, err = h.Fleet.Clusters(cluster.Namespace).Patch(ctx, cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// notKept describes the first BundleDeployment that the agent or the hub would uninstall with its objects; empty if there is none. It ignores the
// BundleDeployment of the agent itself, which is uninstalled, and those that are being deleted.
func notKept(deployments []fleet.BundleDeployment, cluster *fleet.Cluster, hubVersion string) string {
	for _, d := range deployments {
		switch {
		case d.Name == registration.AgentBundleName(cluster.Name), d.DeletionTimestamp != nil:
		case !d.Spec.Options.KeepResources:
			return fmt.Sprintf("the hub (version %s) has not set keepResources in BundleDeployment %s: the Bundle or the Cluster is paused, "+
				"or waits for a rollout, or this hub does not know the annotation %s",
				cmp.Or(hubVersion, "unknown"), d.Name, fleet.KeepWorkloadsAnnotation)
		case d.Spec.DeploymentID != d.Status.AppliedDeploymentID:
			return fmt.Sprintf("the agent (version %s) has not applied BundleDeployment %s with keepResources: it is %s",
				cmp.Or(cluster.Status.Agent.Version, "unknown"), d.Name, fleetstatus.BundleState(d.Spec, d.Status))
		}
	}
	return ""
}

// eventPatience is how long AwaitRemoved waits for the event MemberLeft, which the hub records when it removes the Cluster.
const eventPatience = 2 * time.Second

// AwaitRemoved waits until the hub has removed a Cluster, and calls progress with the reason for which the hub waits. left is the message of the
// event MemberLeft, if objects may remain on the member.
func (h *Hub) AwaitRemoved(ctx context.Context, namespace, name string, uid types.UID, progress func(string)) (left string, err error) {
	shown := ""
	_, err = awaited[*fleet.Cluster]{
		what: fmt.Sprintf("the removal of Cluster %s/%s", namespace, name), get: h.Fleet.Clusters(namespace).Get, name: name,
		status: "the hub has not answered: is a fleet-controller running?",
		check: func(cluster *fleet.Cluster) (bool, string, error) {
			if cluster.UID != uid {
				return false, "", errDeleted // a new Cluster has the name
			}
			status := ""
			if c := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionProcessed); c.Status != "" && c.Status != corev1.ConditionTrue {
				status = c.Reason + ": " + c.Message
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

	ctx, cancel := context.WithTimeout(ctx, eventPatience)
	defer cancel()
	about := fields.Set{"involvedObject.uid": string(uid), "reason": fleet.EventLeftOnMember}.AsSelector().String()
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
		return "", fmt.Errorf("the Cluster is removed; it is not known whether objects remain on the member: %w", err)
	}
	return left, nil
}
