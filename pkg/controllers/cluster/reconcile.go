package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rancher/wrangler/v3/pkg/randomtoken"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/namespacekey"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// reconcile sets the Cluster's finalizer and identity, creates its namespace, calls the sub-reconcilers, and writes the status once.
func (h *handler) reconcile(ctx context.Context, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	cluster, err := h.ensureOwnedFields(ctx, cluster)
	if err != nil {
		return cluster, err
	}
	if cluster, err = h.restorePreserved(ctx, cluster); err != nil {
		return cluster, err
	}

	after := cluster.DeepCopy()
	if !managedElsewhere(after) {
		h.subReconcilers.Liveness.RecordAndCopy(after)
	}
	if h.proofIsVoid(after) { // a thief of the credential may have written the proof
		after.Status.Agent.PossessionProof = ""
	}
	transitions := map[string]*result.Transition{}
	var next time.Duration
	var failed error
	stalled, later := false, false
	report := func(condition string, out result.Result) {
		transitions[condition] = result.Set(&after.Status.Conditions, condition, out, h.Clock.Now())
		next = result.Earliest(next, out.After)
		failed = errors.Join(failed, out.Err)
		stalled, later = stalled || out.IsStalled(), later || out.StatusLater
	}
	processed := h.ensureNamespace(ctx, after)
	if before := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionProcessed); h.DisableBundles && processed.IsDone() && before.Status == corev1.ConditionTrue && before.Reason == "" {
		processed.Reason, processed.Message = "", before.Message // Fleet's own Cluster controller writes this condition too, without a reason
	}
	report(fleet.ConditionProcessed, processed)
	if processed.IsDone() { // all sub-reconcilers need the namespace
		for _, sub := range h.subReconcilers.of(after) {
			report(sub.condition, sub.Reconcile(ctx, after))
		}
		if !managedElsewhere(after) {
			setDisplay(after)
			report(fleet.ConditionRegistered, h.registeredResult(after))
			if out, exists := releasesManaged(after); exists {
				report(fleet.ConditionReleasesManaged, out)
			}
		}
	}
	if len(after.Status.Conditions) > len(cluster.Status.Conditions) { // not for a new order alone, which would write every Cluster once
		fleetstatus.OrderConditions(&after.Status.Conditions, fleet.ConditionProcessed, fleet.ConditionImported,
			fleet.ConditionRegistered, fleet.ConditionConnected, fleet.ConditionReconciled, fleet.ConditionReady)
	}

	// A sub-reconciler has created an object whose event comes at once: the pass after it writes the status.
	if later && failed == nil && !stalled {
		h.queue.EnqueueAfter(cluster.Namespace, cluster.Name, next)
		return cluster, nil
	}

	// A registration usually ends within seconds, and its result is the first status.
	if left := h.firstStatusDelay(cluster, after); left > 0 && failed == nil && !stalled {
		h.queue.EnqueueAfter(cluster.Namespace, cluster.Name, result.Earliest(next, left))
		return cluster, nil
	}

	before := cluster
	if h.DisableBundles {
		if before, err = h.preserve(ctx, cluster, after); err != nil {
			return cluster, errors.Join(err, failed)
		}
	}
	latest, changed, err := writes.Status(ctx, h.FleetClient.Clusters(cluster.Namespace), before, after)
	if err != nil {
		return cluster, errors.Join(err, failed)
	}
	if changed {
		h.written.Wrote(latest)
		for _, condition := range slices.Sorted(maps.Keys(transitions)) {
			transitions[condition].Record(h.Events, latest)
		}
		h.recordRegistered(cluster, latest, transitions[fleet.ConditionRegistered])
	}
	if next > 0 {
		h.queue.EnqueueAfter(latest.Namespace, latest.Name, next)
	}
	return latest, failed
}

// firstReportAfter is the age of a Cluster from which its status shows a first registration that is under way. Earlier writes would delay the
// registrations of hundreds of Clusters at the same time. If a request of the agent was granted meanwhile, the status waits for the same time after the
// grant, but not longer than until the Cluster has the age firstReportLatest: the agent is about to write its first heartbeat to the same object, and
// one of two writes at the same time fails.
const (
	firstReportAfter  = 10 * time.Second
	firstReportLatest = 30 * time.Second
)

// firstStatusDelay returns for how long the hub delays the first status of a Cluster, because the Cluster is being imported, or because a request of
// its agent exists and the first heartbeat will follow; 0 means that the status must be written now. It must be written now for an agent of
// Fleet if Clusters have no status at first, because its heartbeat is a JSON patch that fails without one, and with disableBundles, where the
// request waits for status.namespace.
func (h *handler) firstStatusDelay(cluster, after *fleet.Cluster) time.Duration {
	if len(cluster.Status.Conditions) > 0 {
		return 0
	}
	importing := fleetstatus.Condition(after.Status.Conditions, fleet.ConditionImported).Reason == fleet.ReasonImporting
	waiting := fleetstatus.Condition(after.Status.Conditions, fleet.ConditionRegistered).Reason == fleet.ReasonWaitingForAgent
	requests := h.requestsOf(cluster)
	needsStatus := func(r *fleet.ClusterRegistration) bool { return !h.ClustersHaveStatus && !registration.Renews(r) }
	registering := waiting && !h.DisableBundles && len(requests) > 0 && !slices.ContainsFunc(requests, needsStatus)
	if !importing && !registering {
		return 0
	}
	age := h.Clock.Since(cluster.CreationTimestamp.Time)
	left := firstReportAfter - age
	for _, r := range requests {
		granted := fleetstatus.Condition(r.Status.Conditions, fleet.ConditionGranted)
		if at, err := time.Parse(time.RFC3339, granted.LastTransitionTime); err == nil && granted.Status == corev1.ConditionTrue {
			left = max(left, min(firstReportAfter-h.Clock.Since(at), firstReportLatest-age))
		}
	}
	return min(left, firstReportAfter) // the clock of the API server may be ahead
}

// ensureOwnedFields writes the fields outside the status that the hub owns: the finalizer, without which the namespace of a deleted
// Cluster would remain, the digest of the key of a namespace that is to be created, and spec.clientID of a Cluster with a kubeconfig. It
// removes an empty spec.agentSchedulingCustomization.
func (h *handler) ensureOwnedFields(ctx context.Context, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	if managedElsewhere(cluster) {
		return cluster, nil
	}
	// The resourceVersion prevents a second clientID from replacing one that the cache does not contain yet.
	metadata := map[string]any{"resourceVersion": cluster.ResourceVersion}
	fields := map[string]any{}
	if !slices.Contains(cluster.Finalizers, fleet.ClusterFinalizer) {
		metadata["finalizers"] = append(slices.Clone(cluster.Finalizers), fleet.ClusterFinalizer)
		fields["metadata"] = metadata
	}
	if needed, err := h.needsNamespaceKey(ctx, cluster); err != nil {
		return cluster, err
	} else if needed {
		metadata["annotations"] = map[string]string{fleet.NamespaceDigestAnnotation: h.NamespaceKeys.New(cluster.Namespace, cluster.Name)}
		fields["metadata"] = metadata
	}
	spec := map[string]any{}
	if cluster.Spec.ClientID == "" && cluster.Spec.KubeConfigSecret != "" {
		clientID, err := randomtoken.Generate()
		if err != nil {
			return cluster, err
		}
		spec["clientID"] = clientID
	}
	// Management servers expect the absence of a customization, and write an empty one.
	if s := cluster.Spec.AgentSchedulingCustomization; s != nil && *s == (fleet.AgentSchedulingCustomization{}) {
		spec["agentSchedulingCustomization"] = nil
	}
	if len(spec) > 0 {
		fields["metadata"], fields["spec"] = metadata, spec
	}
	if len(fields) == 0 {
		return cluster, nil
	}
	return h.merge(ctx, cluster, fields)
}

// preserve writes the fields of the status that Fleet's own Cluster controller removes into an annotation, and takes status.import out
// of the status that is written next: it stays in the annotation alone. It returns the version of the Cluster to compare with.
func (h *handler) preserve(ctx context.Context, cluster, after *fleet.Cluster) (before *fleet.Cluster, err error) {
	text, err := preserve.Annotation(after)
	if err != nil {
		return nil, err
	}
	before = cluster
	if text != cluster.Annotations[fleet.StatusAnnotation] {
		var value any // null removes the annotation
		if text != "" {
			value = text
		}
		if before, err = h.annotate(ctx, cluster, value); err != nil {
			return nil, err
		}
	}
	before = before.DeepCopy()
	before.Status.Import, after.Status.Import = nil, nil
	return before, nil
}

// restorePreserved moves status.import back from the annotation of a hub with disableBundles into the status. A merge patch would keep
// fields of an earlier status.import, so that it is removed first.
func (h *handler) restorePreserved(ctx context.Context, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	if h.DisableBundles || cluster.Annotations[fleet.StatusAnnotation] == "" {
		return cluster, nil
	}
	for _, value := range []*fleet.ImportStatus{nil, cluster.Status.Import} {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": cluster.ResourceVersion}, "status": map[string]any{"import": value},
		})
		if err != nil {
			return cluster, err
		}
		latest, err := h.FleetClient.Clusters(cluster.Namespace).Patch(ctx, cluster.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil {
			return cluster, err
		}
		keepCached(latest, cluster)
		cluster = latest
	}
	return h.annotate(ctx, cluster, nil)
}

func (h *handler) annotate(ctx context.Context, cluster *fleet.Cluster, value any) (*fleet.Cluster, error) {
	return h.merge(ctx, cluster, map[string]any{"metadata": map[string]any{
		"resourceVersion": cluster.ResourceVersion, "annotations": map[string]any{fleet.StatusAnnotation: value},
	}})
}

// merge patches fields outside the status; fields must contain the resourceVersion. The result has the status of the given Cluster: with
// disableBundles, the cache adds fields to it that the API server does not return.
func (h *handler) merge(ctx context.Context, cluster *fleet.Cluster, fields map[string]any) (*fleet.Cluster, error) {
	latest, err := writes.Merge(ctx, h.FleetClient.Clusters(cluster.Namespace), cluster, fields)
	if err == nil {
		h.written.Wrote(latest)
		keepCached(latest, cluster)
	}
	return latest, err
}

// keepCached makes the response to a patch of other fields have the status and the spec of the cache, which has reduced them.
func keepCached(latest, cached *fleet.Cluster) {
	latest.Status = cached.Status
	if latest.Generation == cached.Generation {
		latest.Spec = cached.Spec
	}
}

// needsNamespaceKey reports whether the cluster namespace does not exist and this hub has no key for it. If an earlier hub may just have created
// the Namespace, it asks the API server instead of the cache: a new key would not match that Namespace.
func (h *handler) needsNamespaceKey(ctx context.Context, cluster *fleet.Cluster) (bool, error) {
	name := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	if h.DisableBundles || h.created.IsExpected(index.Key(cluster.Namespace, cluster.Name)) || h.NamespaceKeys.Find(cluster) != "" {
		return false, nil
	}
	_, err := h.namespaces.Get(name)
	if apierrors.IsNotFound(err) && (cluster.Annotations[fleet.NamespaceDigestAnnotation] != "" || cluster.Status.Namespace != "") {
		_, err = h.Kubernetes.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// ensureNamespace creates the cluster namespace and sets it in the status.
func (h *handler) ensureNamespace(ctx context.Context, cluster *fleet.Cluster) result.Result {
	if managedElsewhere(cluster) {
		return result.Done(fleet.ReasonManagedElsewhere, "the label "+fleet.ClusterManagementLabel+" assigns this Cluster to another controller")
	}
	name := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return result.Stalled(fleet.ReasonInvalidName, fmt.Sprintf(
			"the name of the cluster namespace would be %q, which Kubernetes does not accept: %s; rename the Cluster", name, strings.Join(problems, "; ")))
	}
	namespace, err := h.namespaces.Get(name)
	switch {
	case !apierrors.IsNotFound(err):
		h.created.Observed(index.Key(cluster.Namespace, cluster.Name))
	case h.created.IsExpected(index.Key(cluster.Namespace, cluster.Name)):
		cluster.Status.Namespace = name
		return result.Done(fleet.ReasonProcessed, "").In(expectations.Timeout) // it may be deleted before the cache contains it
	default:
		namespace, err = h.createNamespace(ctx, cluster, name)
	}
	switch {
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	case namespace.DeletionTimestamp != nil && namespacekey.Names(namespace, cluster):
		if !h.isFor(namespace, cluster) {
			cluster.Status.Namespace = "" // it has the key of an earlier Cluster with this name
		}
		return result.Wait(fleet.ReasonNamespaceDeleting, fmt.Sprintf("waiting for the deletion of the earlier Namespace %s", name))
	case !h.isFor(namespace, cluster):
		cluster.Status.Namespace = "" // nothing may be created in it
		return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
			"Namespace %s exists and was not created by the hub for this Cluster; rename the Cluster or delete the Namespace", name)).In(h.RecheckDelay())
	}
	cluster.Status.Namespace = name
	if !h.created.IsExpected(index.Key(cluster.Namespace, cluster.Name)) {
		h.NamespaceKeys.Forget(cluster.Namespace, cluster.Name) // the next Namespace needs another key: everybody can read this one
	}
	return result.Done(fleet.ReasonProcessed, "")
}

// createNamespace creates the Namespace, or reads it if it exists: the cache contains only Namespaces with the hub's label.
func (h *handler) createNamespace(ctx context.Context, cluster *fleet.Cluster, name string) (*corev1.Namespace, error) {
	client, key := h.Kubernetes.CoreV1().Namespaces(), h.NamespaceKeys.Find(cluster)
	if key == "" && !h.DisableBundles { // it existed when ensureOwnedFields asked
		return client.Get(ctx, name, metav1.GetOptions{})
	}
	annotations := map[string]string{fleet.ClusterAnnotation: cluster.Name, fleet.WorkspaceAnnotation: cluster.Namespace}
	if key != "" {
		annotations[fleet.NamespaceKeyAnnotation] = key
	}
	created, err := client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue}, Annotations: annotations,
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return client.Get(ctx, name, metav1.GetOptions{})
	}
	if err == nil {
		h.created.Expect(index.Key(cluster.Namespace, cluster.Name))
	}
	return created, err
}

// isFor reports whether a Namespace belongs to the Cluster. With disableBundles, Fleet's own Cluster controller may create it, without a
// key.
func (h *handler) isFor(namespace *corev1.Namespace, cluster *fleet.Cluster) bool {
	return namespacekey.IsFor(namespace, cluster) ||
		namespacekey.Names(namespace, cluster) && (h.DisableBundles || h.NamespaceKeys.Created(namespace, cluster))
}
