package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/access"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// handoverWait is how long a management server may take to move a cluster to another namespace: it deletes one Cluster
	// and then creates another, to which the agent is handed over.
	handoverWait = 10 * time.Second
	// claimRecheckInterval is the longest wait before the hub looks again whether the claim of a handover is confirmed.
	claimRecheckInterval = 2 * time.Second
)

// finalize removes what belongs to a deleted Cluster, on the member and on the hub, and then the finalizer. It runs again from the
// start whenever the Cluster is enqueued; each step does nothing if it has been done.
func (h *handler) finalize(ctx context.Context, cluster *fleet.Cluster) (latest *fleet.Cluster, err error) {
	if !slices.Contains(cluster.Finalizers, fleet.ClusterFinalizer) {
		return cluster, nil
	}
	defer func() {
		if err != nil { // an error that lasts keeps the Cluster from being deleted
			ctx, cancel := toReport(ctx)
			defer cancel()
			var unwritten error
			latest, unwritten = h.writeProcessed(ctx, cluster, result.Retry(fleet.ReasonError, err))
			err = errors.Join(err, unwritten)
		}
	}()
	// The time for the member starts when this hub sees the deletion: while no hub ran, no hub could ask the agent, and the clock of the
	// API server may differ. If the hub can access the member itself, the last third of the time is for that.
	seen := h.seenDeletionOf(cluster)
	began, timeout := seen.time, cmp.Or(h.Config.Get().AgentRemovalTimeout.Duration, h.FarewellGrace)
	deadline := began.Add(timeout)
	agentDeadline := deadline
	if cluster.Spec.KubeConfigSecret != "" {
		agentDeadline = began.Add(timeout * 2 / 3)
	}

	// On the member: nothing is removed if the agent is handed over to another Cluster. Otherwise the agent is asked to remove itself, and then the
	// hub removes it with the kubeconfig, even if the agent reports success: the agent may have been stopped right after that.
	isNeeded, recheckIn, err := h.needsFarewell(ctx, cluster, began, timeout)
	switch {
	case err != nil:
		return cluster, err
	case recheckIn > 0:
		return h.reportWaiting(ctx, cluster, result.Wait(fleet.ReasonCheckingHandover,
			"checking whether the management server moves the cluster to another namespace, in which case its agent stays").In(recheckIn))
	}
	byAgent, byHub := finalizing.NotNeeded(), finalizing.NotNeeded()
	kindDeleted := false
	if isNeeded && hadAgent(cluster) {
		if kindDeleted, err = h.KindDeleted(ctx, "clusters", *cluster.DeletionTimestamp, began); err != nil {
			return cluster, err
		}
	}
	switch {
	case !isNeeded:
	case kindDeleted: // whoever deletes a kind may not mean to remove all workloads
		byAgent = finalizing.GivenUp(fleet.ReasonKindDeleted,
			"CustomResourceDefinition "+app.DefinitionName("clusters")+" is being deleted: the agent and what it deployed stay on the member")
	default:
		if byAgent, err = h.askAgent(ctx, cluster, agentDeadline); err != nil {
			return cluster, err
		} else if byAgent.IsWaiting() {
			return h.reportWaiting(ctx, cluster, result.Wait(byAgent.Reason, byAgent.Message).In(byAgent.After))
		}
		if byHub, err = h.subReconcilers.Import.Uninstall(ctx, cluster, deadline); err != nil {
			return cluster, err
		} else if byHub.IsWaiting() {
			return h.reportWaiting(ctx, cluster, result.Wait(byHub.Reason, byHub.Message).In(byHub.After))
		}
	}

	// On the hub. The import token is deleted by Kubernetes, because the Cluster is its owner.
	if err := h.deleteBundle(ctx, cluster); err != nil {
		return cluster, err
	}
	if err := h.deleteRequests(ctx, cluster); err != nil {
		return cluster, err
	}
	if err := h.deleteNamespace(ctx, cluster); err != nil {
		return cluster, err
	}
	// Report what may be left on the member before the finalizer is removed: afterwards the Cluster is gone, and nobody would report it.
	h.reportLeft(cluster, seen, byAgent, byHub)
	return writes.RemoveFinalizer(ctx, h.FleetClient.Clusters(cluster.Namespace), cluster, fleet.ClusterFinalizer)
}

// seenDeletion is a deletion of a Cluster that this hub has seen. It has no lock: the queue runs one pass over a Cluster at a time.
type seenDeletion struct {
	uid      types.UID
	time     time.Time // at which this hub first saw the deletion
	reported bool      // event MemberLeft, which means that objects are left on the member, was recorded
}

// seenDeletionOf returns the record of the deletion of the Cluster. The first call creates it.
func (h *handler) seenDeletionOf(cluster *fleet.Cluster) *seenDeletion {
	key := index.Key(cluster.Namespace, cluster.Name)
	if seen, exists := h.deletions.Load(key); exists && seen.(*seenDeletion).uid == cluster.UID {
		return seen.(*seenDeletion)
	}
	seen := &seenDeletion{uid: cluster.UID, time: h.Clock.Now()}
	h.deletions.Store(key, seen)
	return seen
}

// reportWaiting writes into condition Processed what the deletion waits for, and enqueues the Cluster after the time of the result.
func (h *handler) reportWaiting(ctx context.Context, cluster *fleet.Cluster, out result.Result) (*fleet.Cluster, error) {
	latest, err := h.writeProcessed(ctx, cluster, out)
	if err == nil && out.After > 0 {
		h.queue.EnqueueAfter(cluster.Namespace, cluster.Name, out.After)
	}
	return latest, err
}

// toReport returns the context with which the error of a pass is written. If the pass has reached its deadline, which may be the cause of the
// error, the context has five seconds more. If the hub stops, it has ended: the hub then writes nothing.
func toReport(ctx context.Context) (context.Context, context.CancelFunc) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	}
	return ctx, func() {}
}

// writeProcessed writes condition Processed of a deleted Cluster. It is no error if the Cluster is gone.
func (h *handler) writeProcessed(ctx context.Context, cluster *fleet.Cluster, out result.Result) (*fleet.Cluster, error) {
	after := cluster.DeepCopy()
	transition := result.Set(&after.Status.Conditions, fleet.ConditionProcessed, out, h.Clock.Now())
	latest, changed, err := writes.Status(ctx, h.FleetClient.Clusters(cluster.Namespace), cluster, after)
	switch {
	case apierrors.IsNotFound(err):
		return cluster, nil
	case err != nil:
		return cluster, err
	case changed:
		h.written.Wrote(latest)
		transition.Record(h.Events, latest)
	}
	return latest, nil
}

// reportLeft emits an event if something may be left on the member: if neither the agent nor the hub has removed the agent, and one
// of them returned a reason. The hub's reason is the more recent one. If the finalizer cannot be removed, the passes that try again report nothing more.
func (h *handler) reportLeft(cluster *fleet.Cluster, seen *seenDeletion, byAgent, byHub finalizing.Farewell) {
	left := byHub
	if !left.IsGivenUp() {
		left = byAgent
	}
	if byAgent.IsRemoved() || byHub.IsRemoved() || !left.IsGivenUp() || seen.reported {
		return
	}
	seen.reported = true
	h.Metrics.MembersNotCleaned.WithLabelValues(left.Reason).Inc()
	what := fmt.Sprintf("something may be left on the member: %s: %s; the agent was in namespace %s, and %d Bundles were deployed",
		left.Reason, left.Message, cmp.Or(cluster.Status.Agent.Namespace, agentspec.Namespace(h.Context, cluster)), cluster.Status.Summary.DesiredReady)
	logrus.WithField(registration.LogCluster, index.Key(cluster.Namespace, cluster.Name)).Warn(what)
	h.Events.Event(cluster, corev1.EventTypeWarning, fleet.EventLeftOnMember, what)
}

// needsFarewell decides whether the agent must be removed from the member. It stays, with what it deployed, if it is handed over to another Cluster, if
// another controller manages the Cluster, if the configuration disables the agent of the hub's own cluster, which an import has removed, or if that
// cluster is registered in another namespace now. The other Cluster gives the agent a new credential; the old one is deleted with the namespace of this
// Cluster. If recheckIn is positive, nothing must be removed before the decision is repeated after that time.
func (h *handler) needsFarewell(ctx context.Context, cluster *fleet.Cluster, began time.Time, timeout time.Duration) (isNeeded bool, recheckIn time.Duration, err error) {
	hub := h.Config.Get()
	// The hub's own cluster is registered in another namespace after bootstrap.namespace has changed.
	localMoved := cluster.Name == registration.LocalCluster && cluster.Spec.KubeConfigSecret == registration.LocalSecret &&
		hub.Bootstrap.Enabled() && hub.Bootstrap.Namespace != cluster.Namespace
	if managedElsewhere(cluster) || agentspec.LocalDisabled(hub, cluster) || localMoved {
		return false, 0, nil
	}
	claims, err := h.handoverClaims(cluster)
	if err != nil {
		return false, 0, err
	}
	if isConfirmed, err := h.confirmsHandover(ctx, cluster, claims); isConfirmed || err != nil {
		return false, 0, err
	}

	// Wait for a Cluster that the management server may create, or for the confirmation of a claim.
	claimed, longest := len(claims) > 0, timeout/3
	if !claimed {
		longest = min(handoverWait, longest)
	}
	remaining := began.Add(longest).Sub(h.Clock.Now())
	mayMove := claimed || cluster.Labels[fleet.ManagementClusterLabel] != ""
	if !mayMove || !hadAgent(cluster) || remaining <= 0 {
		return true, 0, nil
	}
	if claimed {
		remaining = min(remaining, claimRecheckInterval)
	}
	return true, remaining, nil
}

// handoverClaims are the Clusters to which the agent may be handed over: Clusters with the same kubeconfig, or with the same cluster ID of a
// management server, whose agent runs in the same namespace of the member.
func (h *handler) handoverClaims(cluster *fleet.Cluster) (claims []*fleet.Cluster, err error) {
	if name := cluster.Labels[fleet.ManagementClusterLabel]; name != "" {
		found, err := h.clusters.GetByIndex(index.ByManagementName, name)
		if err != nil {
			return nil, err
		}
		claims = append(claims, found...)
	}
	if secret := cluster.Spec.KubeConfigSecret; secret != "" {
		found, err := h.clusters.GetByIndex(index.ByKubeconfig, index.Key(index.KubeconfigNamespace(cluster), secret))
		if err != nil {
			return nil, err
		}
		claims = append(claims, found...)
	}
	return slices.DeleteFunc(claims, func(other *fleet.Cluster) bool {
		return other.UID == cluster.UID || other.DeletionTimestamp != nil ||
			agentspec.Namespace(h.Context, other) != agentspec.Namespace(h.Context, cluster)
	}), nil
}

// confirmsHandover reports whether the claim of one of the Clusters to the agent is confirmed. Otherwise any user who may create Clusters could
// keep the agents of other Clusters from being removed. A Cluster that names the same kubeconfig must have the right to use it. A Cluster that
// names the same cluster of a management server must own the agent that is on the member of the deleted Cluster: a user can register any
// other cluster with that name. If the kubeconfig of the deleted Cluster is gone, the hub cannot ask the member; then it is enough that
// the other Cluster has an agent.
func (h *handler) confirmsHandover(ctx context.Context, cluster *fleet.Cluster, claims []*fleet.Cluster) (bool, error) {
	namespace, name := index.KubeconfigNamespace(cluster), cluster.Spec.KubeConfigSecret
	if name == "" { // a management server has a kubeconfig of each cluster that it moves
		return false, nil
	}
	var withAgent []*fleet.Cluster
	workspaces := map[string]*fleet.Cluster{} // by workspace, one Cluster there that names the same kubeconfig: the annotation of a Secret permits whole workspaces
	for _, other := range claims {
		sameKubeconfig := other.Spec.KubeConfigSecret == name && index.KubeconfigNamespace(other) == namespace
		switch {
		case sameKubeconfig && access.NeedsNoPermission(other):
			return true, nil
		case sameKubeconfig:
			workspaces[other.Namespace] = other
		case hadAgent(other):
			withAgent = append(withAgent, other)
		}
	}
	if len(workspaces) > 0 {
		// One read for all workspaces: any user can create thousands of Clusters that name this Secret.
		secret, err := h.Kubernetes.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("reading kubeconfig Secret %s/%s of the deleted Cluster: %w", namespace, name, err)
		}
		for _, other := range workspaces {
			if err == nil && access.MayUse(other, secret) {
				return true, nil
			}
		}
	}
	belongs, canAsk, err := h.subReconcilers.Import.AgentBelongsTo(ctx, cluster, withAgent)
	isKubeconfigGone := err == nil && !canAsk
	return belongs || isKubeconfigGone, err
}

// hadAgent reports whether an agent of the Cluster has sent a heartbeat, or the hub has installed one. An import that requires another
// registration clears the heartbeat.
func hadAgent(cluster *fleet.Cluster) bool {
	return !cluster.Status.Agent.LastSeen.IsZero() || cluster.Status.AgentDeployedGeneration != nil
}

// askAgent asks a connected agent, with an annotation on its BundleDeployment, to uninstall its releases and itself. The result is Removed when the
// agent has answered that its releases are uninstalled and that its own uninstallation has begun, which a restart continues; GivenUp if it cannot
// be asked or did not answer before the deadline; and NotNeeded if there never was an agent.
func (h *handler) askAgent(ctx context.Context, cluster *fleet.Cluster, deadline time.Time) (finalizing.Farewell, error) {
	switch {
	case !hadAgent(cluster):
		return finalizing.NotNeeded(), nil
	case cluster.Spec.Quarantined:
		return finalizing.GivenUp(fleet.ReasonQuarantined, "the agent is quarantined and could not be asked to remove what it deployed"), nil
	case fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionConnected).Status != corev1.ConditionTrue:
		return finalizing.GivenUp(fleet.ReasonDisconnected, "the agent is not connected and could not be asked to remove what it deployed"), nil
	case agentspec.IsOfFleet(cluster.Status.Agent):
		return finalizing.GivenUp(fleet.ReasonAgentUnaware, "the agent is of a version that cannot be asked to remove what it deployed"), nil
	}

	remaining := deadline.Sub(h.Clock.Now())
	deployment, err := h.ensureAsked(ctx, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return finalizing.GivenUp(fleet.ReasonAgentUnaware, "the agent has no BundleDeployment with which it could be asked to remove what it deployed"), nil
	case err != nil && remaining > 0:
		return finalizing.Farewell{}, err
	case err != nil: // a write that always fails, for example because of a webhook, must not block the deletion forever
		return finalizing.GivenUp(fleet.ReasonFarewellTimeout, "the agent could not be asked to remove what it deployed: "+err.Error()), nil
	}
	answer := fleetstatus.Condition(deployment.Status.Conditions, fleet.ConditionFarewell)
	switch {
	case answer.Status == corev1.ConditionTrue:
		return finalizing.Removed(), nil
	case remaining <= 0:
		message := "the agent did not confirm in time that it has removed what it deployed"
		if answer.Message != "" {
			message += ": " + answer.Message
		}
		return finalizing.GivenUp(fleet.ReasonFarewellTimeout, message), nil
	}
	return finalizing.Waiting(fleet.ReasonFarewell,
		fmt.Sprintf("waiting until %s for the agent to remove what it deployed", deadline.UTC().Format(time.RFC3339)), remaining), nil
}

// ensureAsked returns the agent's BundleDeployment with the annotations that ask the agent.
func (h *handler) ensureAsked(ctx context.Context, cluster *fleet.Cluster) (*fleet.BundleDeployment, error) {
	namespace, name := registration.ClusterNamespace(cluster.Namespace, cluster.Name), registration.AgentBundleName(cluster.Name)
	client := h.FleetClient.BundleDeployments(namespace)
	deployment, err := h.deployments.Get(namespace, name)
	if err != nil { // the cache may not contain it yet
		deployment, err = client.Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil || deployment.Annotations[fleet.FarewellAnnotation] != "" {
		return deployment, err
	}
	annotations := map[string]string{fleet.FarewellAnnotation: cluster.DeletionTimestamp.UTC().Format(time.RFC3339)}
	if fleetstatus.KeepsWorkloads(cluster) {
		annotations[fleet.KeepWorkloadsAnnotation] = fleet.KeepWorkloadsValue
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return nil, err
	}
	asked, err := client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking the agent to uninstall itself with BundleDeployment %s/%s: %w", namespace, name, err)
	}
	return asked, nil
}

// deleteBundle deletes the agent's Bundle, but not a Bundle with this name that a user created, or that belongs to another Cluster. A Bundle
// that the cache does not contain yet is deleted later as an orphan.
func (h *handler) deleteBundle(ctx context.Context, cluster *fleet.Cluster) error {
	name := registration.AgentBundleName(cluster.Name)
	bundle, err := h.bundles.Get(cluster.Namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading Bundle %s/%s of the deleted Cluster: %w", cluster.Namespace, name, err)
	case !agentspec.IsAgentBundle(bundle), agentspec.IsBundleOfOther(bundle, cluster.Name):
		return nil
	}
	client := h.FleetClient.Bundles(cluster.Namespace)
	if bundle.DeletionTimestamp == nil {
		err = client.Delete(ctx, name, writes.IfUID(bundle))
	}
	// Remove the finalizer here, not in the controller of Bundles: that waits for the BundleDeployment, which is deleted with the
	// cluster namespace. If the hub is uninstalled right after its last Cluster, the Bundle would keep the workspace namespace
	// from being deleted. If Fleet's own controllers handle Bundles, they remove the finalizer.
	if err == nil && !h.DisableBundles && slices.Contains(bundle.Finalizers, fleet.BundleFinalizer) {
		left := slices.DeleteFunc(slices.Clone(bundle.Finalizers), func(f string) bool { return f == fleet.BundleFinalizer })
		_, err = writes.Merge(ctx, client, bundle, map[string]any{"metadata": map[string]any{"finalizers": left, "uid": bundle.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Bundle %s/%s of the deleted Cluster: %w", cluster.Namespace, name, err)
	}
	return nil
}

// deleteRequests deletes the agent's ClusterRegistrations, and with them the rights of the agent. Kubernetes would delete them as well,
// because the Cluster is their owner, but it discovers new kinds only every 30 seconds.
func (h *handler) deleteRequests(ctx context.Context, cluster *fleet.Cluster) error {
	requests, err := index.RequestsByClientID.Find(h.requests, index.Key(cluster.Namespace, cluster.Spec.ClientID))
	if err != nil {
		return err
	}
	for _, r := range requests {
		ours := slices.ContainsFunc(r.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == cluster.UID })
		if !ours || r.DeletionTimestamp != nil {
			continue
		}
		// The farewell has ended, successfully or not, so the controller of requests need not ask whether the agent still needs its rights.
		h.RequestsDeletedWithCluster.Add(types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
		err := h.FleetClient.ClusterRegistrations(r.Namespace).Delete(ctx, r.Name, writes.IfUID(r))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting ClusterRegistration %s/%s of the deleted Cluster: %w", r.Namespace, r.Name, err)
		}
	}
	return nil
}

// deleteNamespace deletes the cluster namespace, with the agent's identity and BundleDeployments. It computes the name and checks the
// owner, because the agent may write the status: status.namespace must not decide which Namespace the hub deletes.
func (h *handler) deleteNamespace(ctx context.Context, cluster *fleet.Cluster) error {
	name := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	client := h.Kubernetes.CoreV1().Namespaces()
	namespace, err := h.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		namespace, err = client.Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading Namespace %s of the deleted Cluster: %w", name, err)
	case !h.isFor(namespace, cluster), namespace.DeletionTimestamp != nil:
		return nil
	}
	err = client.Delete(ctx, name, writes.IfUID(namespace))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Namespace %s of the deleted Cluster: %w", name, err)
	}
	return nil
}
