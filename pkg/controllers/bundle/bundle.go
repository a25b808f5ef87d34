package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// unreportedStatusDelay is the time after its creation for which a Bundle may have no status while no agent has reported. It may be twice as long if the
// clock of the hub is behind that of the API server.
const unreportedStatusDelay = 30 * time.Second

// onBundle adds the finalizer to a Bundle, or finalizes it, decides which Clusters its rollout has reached, enqueues the Clusters that a change
// affects, and updates the Bundle's status. The queue of Bundles also has the keys of workspaces in which other objects have changed.
func (d *Deployer) onBundle(k string, b *fleet.Bundle) (*fleet.Bundle, error) {
	ctx, cancel := d.Passes.Context()
	defer cancel()
	isWorkspace := d.changes.HandleKey(k, func(workspace string, changed changedObjects) { d.enqueueDependents(ctx, workspace, changed) })
	if isWorkspace {
		return nil, nil
	}
	if b == nil {
		d.forgetBundle(k)
		return nil, nil
	}
	if d.writtenBundles.IsStale(b) {
		return b, nil
	}
	if b.DeletionTimestamp != nil {
		d.enqueueRefusing(keyOf(b))
		return d.finalizeBundle(ctx, b)
	}
	if !slices.Contains(b.Finalizers, fleet.BundleFinalizer) {
		latest, err := writes.Merge(ctx, d.FleetClient.Bundles(b.Namespace), b, map[string]any{"metadata": map[string]any{
			"finalizers": append(slices.Clone(b.Finalizers), fleet.BundleFinalizer), "resourceVersion": b.ResourceVersion,
		}})
		if err != nil {
			return b, err
		}
		d.writtenBundles.Wrote(latest)
		latest.Spec = b.Spec // the patch has not changed it, and the cache has reduced it
		b = latest
	}
	p := d.plans.of(ctx, b)
	if p.err != nil {
		return b, p.err
	}
	groups, err := d.groupsForBundle(ctx, b, p)
	if err != nil {
		return b, err
	}
	matches, groupProblem, err := d.matches(ctx, b, p, groups)
	if err != nil {
		return b, err
	}
	rollout, err := d.rollOut(ctx, b, p, matches, groups)
	if err != nil {
		return b, err
	}
	d.enqueueAffected(b, p, matches)
	return d.updateStatus(ctx, b, p, groups, matches, groupProblem, rollout)
}

// groupsForBundle returns the ClusterGroups for a pass over a Bundle. It asks the API server about their kind if the Bundle selects groups. Without a rollout
// the pass decides nothing, and an answer of the last second is enough, so that many Bundles cause few requests.
func (d *Deployer) groupsForBundle(ctx context.Context, b *fleet.Bundle, p *plan) (*workspaceGroups, error) {
	groups := d.groupsOf(b.Namespace)
	if len(p.allOfGroups()) == 0 {
		return groups, nil
	}
	groups.list() // before the API server is asked, so that the answer explains each group that is gone
	seen := time.Time{}
	if hasRollout(b, p) {
		seen = d.Clock.Now()
	}
	missing, err := d.missingGroups(ctx, b.CreationTimestamp, seen)
	if missing == anyMissing {
		groups.missing = missing
	}
	return groups, err
}

// forgetBundle drops the state of a deleted Bundle, and enqueues the Clusters that still have a BundleDeployment of it, or whose status reports an error
// about it: a user may have removed the finalizer.
func (d *Deployer) forgetBundle(k string) {
	namespace, name, _ := cache.SplitMetaNamespaceKey(k)
	bundle := key{Namespace: namespace, Name: name}
	d.plans.forget(bundle)
	d.mu.Lock()
	delete(d.seen, bundle)
	delete(d.changedAt, bundle)
	delete(d.rollouts, bundle)
	d.mu.Unlock()
	left, _ := d.deploymentsOfBundle(bundle)
	for _, deployment := range left {
		d.enqueueCluster(deployment.Namespace, 0)
	}
	d.enqueueRefusing(bundle)
}

// parallelDeletes is how many BundleDeployments of one Bundle are deleted at the same time.
const parallelDeletes = 16

// uninstallPoll is the interval at which the deleted Bundle of an agent is processed while the agent uninstalls itself.
const uninstallPoll = 10 * time.Second

// reportHeldAfter is the time after the deletion of a Bundle from which its condition Ready reports what it waits for, and the shortest interval
// between two reports of what keeps the Bundle from being deleted. The hub and the agents put no finalizers on BundleDeployments, which are therefore gone
// within seconds, even thousands of them.
const reportHeldAfter = 30 * time.Second

// finalizeBundle deletes the BundleDeployments of a deleted Bundle, and removes the finalizer when all are gone. Condition Ready has the error that
// prevents it, or the BundleDeployment that stays. If the kind of Bundles is being deleted, finalizeBundle leaves the BundleDeployments and removes the finalizer.
func (d *Deployer) finalizeBundle(ctx context.Context, b *fleet.Bundle) (latest *fleet.Bundle, err error) {
	if !slices.Contains(b.Finalizers, fleet.BundleFinalizer) {
		return b, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.reportUndeleted(ctx, b, err))
		}
	}()
	left, err := d.deploymentsOfBundle(keyOf(b))
	if err != nil {
		return b, err
	}
	if len(left) == 0 {
		return writes.RemoveFinalizer(ctx, d.FleetClient.Bundles(b.Namespace), b, fleet.BundleFinalizer)
	}

	// An agent's Bundle may be deleted while the agent has to uninstall itself, for example together with its namespace. The
	// agent reads its BundleDeployment for that, so the BundleDeployment stays until the cluster namespace is deleted.
	unused := left
	if agentspec.IsAgentBundle(b) {
		unused = d.withoutUninstalling(unused, false)
		if len(unused) > 0 {
			isNamespaceDeleting, err := finalizing.IsNamespaceBeingDeleted(ctx, d.Kubernetes, b.Namespace)
			if err != nil {
				return b, err
			}
			unused = d.withoutUninstalling(unused, isNamespaceDeleting)
		}
		if len(unused) == 0 {
			d.bundles.EnqueueAfter(b.Namespace, b.Name, uninstallPoll)
			return b, nil
		}
	}

	// The releases stay if the Bundle was not deleted for itself. A Bundle of the same name takes the BundleDeployments over.
	if slices.ContainsFunc(unused, func(deployment *fleet.BundleDeployment) bool { return !d.isBeingDeleted(deployment) }) {
		kindDeleted, err := d.KindDeleted(ctx, "bundles", *b.DeletionTimestamp, d.Clock.Now())
		if err != nil {
			return b, err
		}
		if kindDeleted {
			logrus.Warnf("CustomResourceDefinition %s is being deleted: the %d BundleDeployments of Bundle %s stay", app.DefinitionName("bundles"), len(unused), keyOf(b))
			return writes.RemoveFinalizer(ctx, d.FleetClient.Bundles(b.Namespace), b, fleet.BundleFinalizer)
		}
	}

	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelDeletes)
	for _, deployment := range unused {
		if deployment.DeletionTimestamp == nil {
			group.Go(func() error {
				if groupCtx.Err() != nil {
					return groupCtx.Err()
				}
				return d.delete(groupCtx, deployment)
			})
		}
	}
	if err := group.Wait(); err != nil {
		return b, err
	}
	return d.reportHeld(ctx, b, left) // the event of the last deletion enqueues the Bundle
}

// reportHeld writes into condition Ready of a deleted Bundle which BundleDeployment stays because of its finalizers, if one stays for reportHeldAfter.
// No event of a BundleDeployment enqueues the Bundle while its finalizers stay. The API server has set the time of the deletion: the report is late by the
// difference if the clock of the hub is behind, and early if it is ahead.
func (d *Deployer) reportHeld(ctx context.Context, b *fleet.Bundle, left []*fleet.BundleDeployment) (*fleet.Bundle, error) {
	since := b.DeletionTimestamp.Time
	if reported := undeletedReportedAt(b); !reported.IsZero() {
		since = reported
	}
	if wait := since.Add(reportHeldAfter).Sub(d.Clock.Now()); wait > 0 {
		d.bundles.EnqueueAfter(b.Namespace, b.Name, wait)
		return b, nil
	}
	d.bundles.EnqueueAfter(b.Namespace, b.Name, reportHeldAfter)
	held := slices.DeleteFunc(left, func(deployment *fleet.BundleDeployment) bool {
		return deployment.DeletionTimestamp == nil || len(deployment.Finalizers) == 0 // the cache does not show the deletion yet
	})
	if len(held) == 0 {
		return b, nil
	}
	first := slices.MinFunc(held, func(a, b *fleet.BundleDeployment) int { return cmp.Compare(a.Namespace, b.Namespace) })
	message := fmt.Sprintf("%s: BundleDeployment %s is being deleted, and stays because of its finalizers: %s", undeleted, keyOf(first),
		strings.Join(slices.Sorted(slices.Values(first.Finalizers)), ", "))
	switch others := len(held) - 1; others {
	case 0:
	case 1:
		message += " (and 1 other BundleDeployment)"
	default:
		message += fmt.Sprintf(" (and %d other BundleDeployments)", others)
	}
	return d.writeReady(ctx, b, result.Stalled(fleet.ReasonBundleDeleting, message))
}

// undeleted begins the message of condition Ready of a Bundle that cannot be deleted yet.
const undeleted = "the Bundle cannot be deleted yet"

// undeletedReportedAt returns the time at which condition Ready of a deleted Bundle got its message, the zero time if it does not say why the Bundle stays.
func undeletedReportedAt(b *fleet.Bundle) time.Time {
	ready := fleetstatus.Condition(b.Status.Conditions, fleet.ConditionReady)
	if !strings.HasPrefix(ready.Message, undeleted) {
		return time.Time{}
	}
	reported, _ := time.Parse(time.RFC3339, ready.LastUpdateTime) // the zero time if there is an error
	return reported
}

// reportUndeleted writes the error that keeps a Bundle from being deleted into its condition Ready, once: the next error may be of another
// BundleDeployment, and each write would enqueue the Bundle without a pause. After a report of reportHeld it waits for reportHeldAfter: if some deletions
// fail and other BundleDeployments stay, the condition changes only that often.
func (d *Deployer) reportUndeleted(ctx context.Context, b *fleet.Bundle, cause error) error {
	if reported := undeletedReportedAt(b); !reported.IsZero() {
		isError := fleetstatus.Condition(b.Status.Conditions, fleet.ConditionReady).Reason == fleet.ReasonError
		if isError || d.Clock.Now().Before(reported.Add(reportHeldAfter)) {
			return nil
		}
	}
	_, err := d.writeReady(ctx, b, result.Retry(fleet.ReasonError, fmt.Errorf(undeleted+": %w", cause)))
	return err
}

// writeReady writes condition Ready of a deleted Bundle, unless it is as it should be. The Bundle may be gone already.
func (d *Deployer) writeReady(ctx context.Context, b *fleet.Bundle, out result.Result) (*fleet.Bundle, error) {
	before := &fleet.Bundle{TypeMeta: b.TypeMeta, ObjectMeta: b.ObjectMeta, Status: b.Status}
	after := &fleet.Bundle{TypeMeta: b.TypeMeta, ObjectMeta: b.ObjectMeta, Status: *b.Status.DeepCopy()}
	transition := result.Set(&after.Status.Conditions, fleet.ConditionReady, out, d.Clock.Now())
	latest, changed, err := writes.Status(ctx, d.FleetClient.Bundles(b.Namespace), before, after)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return b, nil
	}
	if err != nil || !changed {
		return b, err
	}
	d.writtenBundles.Wrote(latest)
	transition.Record(d.Events, latest)
	return latest, nil
}

// withoutUninstalling leaves out the BundleDeployments of Clusters whose agents have to uninstall themselves.
func (d *Deployer) withoutUninstalling(all []*fleet.BundleDeployment, isNamespaceDeleting bool) []*fleet.BundleDeployment {
	return slices.DeleteFunc(slices.Clone(all), func(deployment *fleet.BundleDeployment) bool {
		clusters, _ := clustersByClusterNamespace.Find(d.clusterCache, deployment.Namespace)
		return slices.ContainsFunc(clusters, func(c *fleet.Cluster) bool { return finalizing.InProgress(c, isNamespaceDeleting) })
	})
}

// bundleVersion is the part of a Bundle that determines its BundleDeployments.
type bundleVersion struct {
	uid        types.UID
	generation int64
	labels     map[string]string
	isAgent    bool
	hasValues  bool // false while the Secret of spec.valuesHash does not have them
	isReduced  bool
}

// enqueueAffected enqueues the Clusters that a Bundle targets or was deployed to, or whose status reports an error about it, if its version is a new one.
// The first version that a hub sees is not new if the status is of the same generation: at its start the hub enqueues all Clusters.
func (d *Deployer) enqueueAffected(b *fleet.Bundle, p *plan, matches []match) {
	k, now := keyOf(b), bundleVersion{b.UID, b.Generation, b.Labels, agentspec.IsAgentBundle(b), !p.lacksValues(), isReduced(b)}
	d.mu.Lock()
	before, known := d.seen[k]
	d.seen[k] = now
	d.mu.Unlock()
	same := before.uid == now.uid && before.generation == now.generation && before.isAgent == now.isAgent && before.hasValues == now.hasValues &&
		before.isReduced == now.isReduced &&
		maps.Equal(before.labels, now.labels)
	if known && same || !known && b.Status.ObservedGeneration == b.Generation {
		return
	}
	d.markChanged(k)
	enqueued := map[string]bool{} // by cluster namespace
	for _, m := range matches {
		if len(m.targets) == 0 {
			continue // it is not known whether the Bundle targets the Cluster, and the event of the ClusterGroup will enqueue it
		}
		enqueued[registration.ClusterNamespace(m.cluster.Namespace, m.cluster.Name)] = true
		d.clusters.EnqueueAfter(m.cluster.Namespace, m.cluster.Name, 0)
	}
	deployed, _ := d.deploymentsOfBundle(keyOf(b))
	for _, deployment := range deployed {
		if !enqueued[deployment.Namespace] {
			d.enqueueCluster(deployment.Namespace, 0)
		}
	}
	d.enqueueRefusing(k)
}

// enqueueRefusing enqueues the Clusters whose status reports an error about a Bundle of which they have no BundleDeployment. No event of a
// BundleDeployment says that the Bundle is gone, or no longer targets them.
func (d *Deployer) enqueueRefusing(bundle key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for cluster, names := range d.refusals {
		if cluster.Namespace == bundle.Namespace && slices.Contains(names, bundle.Name) {
			d.clusters.EnqueueAfter(cluster.Namespace, cluster.Name, 0)
		}
	}
}

// noteMissingValues lets the next pass over a Bundle that has its values enqueue the Clusters: a pass over a Cluster has seen it without them, and the
// pass over the Bundle may not have.
func (d *Deployer) noteMissingValues(k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := d.seen[k]
	seen.hasValues = false
	d.seen[k] = seen
}

// updateStatus writes the status of a Bundle, at most once in each interval StatusDelay.
func (d *Deployer) updateStatus(
	ctx context.Context, b *fleet.Bundle, p *plan, groups *workspaceGroups, matches []match, groupProblem *problem, rollout rolloutStatus,
) (*fleet.Bundle, error) {
	k, now := keyOf(b), d.Clock.Now()
	d.mu.Lock()
	changedAt := d.changedAt[k]
	due := changedAt.IsZero() || !now.Before(changedAt.Add(d.StatusDelay()))
	if due {
		delete(d.changedAt, k) // before the status is computed, so that a later change is not lost
	}
	d.mu.Unlock()
	if !due {
		d.bundles.EnqueueAfter(b.Namespace, b.Name, changedAt.Add(d.StatusDelay()).Sub(now))
		return b, nil
	}

	limits := d.storageLimits(k, matches)
	counts, err := d.summarize(ctx, b, p, matches, limits)
	if err != nil {
		return b, err
	}
	var missingProblem *problem
	if counts.isHeld || rollout.isHeld {
		if missingProblem = p.missingProblem(groups); missingProblem != nil {
			d.bundles.EnqueueAfter(b.Namespace, b.Name, d.RecheckDelay()) // no event says that the groups do not count as missing any more
		}
	}
	// The first status of most Bundles would only report that no agent has reported yet, and would soon be wrong. For the Bundle
	// of an agent the status of its Cluster reports that.
	if b.Status.ObservedGeneration == 0 && counts.summary.DesiredReady > 0 &&
		counts.summary.WaitApplied+counts.summary.Pending == counts.summary.DesiredReady {
		wait := unreportedStatusDelay - now.Sub(b.CreationTimestamp.Time)
		if agentspec.IsAgentBundle(b) {
			return b, nil
		} else if wait > 0 && wait <= 2*unreportedStatusDelay {
			d.bundles.EnqueueAfter(b.Namespace, b.Name, wait)
			return b, nil
		}
	}

	// The spec is left out: it holds the resources, which are large.
	before := &fleet.Bundle{TypeMeta: b.TypeMeta, ObjectMeta: b.ObjectMeta, Status: b.Status}
	after := &fleet.Bundle{TypeMeta: b.TypeMeta, ObjectMeta: b.ObjectMeta, Status: *b.Status.DeepCopy()}
	status := &after.Status
	status.ObservedGeneration = b.Generation
	status.ResourcesSHA256Sum = p.sum
	status.Summary = counts.summary
	status.Unavailable = counts.unavailable
	status.MaxUnavailable, status.MaxUnavailablePartitions = rollout.maxUnavailable, rollout.maxUnavailablePartitions
	status.UnavailablePartitions, status.Partitions = rollout.unavailablePartitions, rollout.partitions
	status.Display = fleet.BundleDisplay{ReadyClusters: rollup.Fraction(counts.summary), State: string(rollup.Worst(counts.summary))}
	out := bundleResult(cmp.Or(p.problem, groupProblem, missingProblem, storageProblem(limits)), counts)
	out = rollup.WithoutRoutineEvent(fleetstatus.Condition(status.Conditions, fleet.ConditionReady), out)
	transition := result.Set(&status.Conditions, fleet.ConditionReady, out, now)
	latest, changed, err := writes.Status(ctx, d.FleetClient.Bundles(b.Namespace), before, after)
	if err != nil {
		return b, fmt.Errorf("updating a Bundle: %w", err)
	}
	if !changed {
		return b, nil
	}
	d.writtenBundles.Wrote(latest)
	transition.Record(d.Events, latest)
	return latest, nil
}

// clusterCounts are the Clusters that a Bundle targets, and those that have a BundleDeployment of it.
type clusterCounts struct {
	summary fleet.BundleSummary
	// unavailable are those without a BundleDeployment, those whose staged deployment ID is older, and those for which isUnavailable is true.
	unavailable int
	quarantined int  // without a BundleDeployment
	isHeld      bool // one has no BundleDeployment, or keeps the one it has, because its targets are not known
}

// summarize counts the Clusters that a Bundle targets by the state of their BundleDeployment, and the BundleDeployments that no target asks
// for any more. A Cluster without a BundleDeployment counts as Pending, and one whose staged deployment ID is of an older version of the Bundle, because
// the pass over the Cluster has not come yet, as WaitApplied: the report of its agent is about an older version. A quarantined Cluster gets no
// BundleDeployment; if it has none it is counted separately. A Cluster whose targets are not known counts only if it has a BundleDeployment.
func (d *Deployer) summarize(
	ctx context.Context, b *fleet.Bundle, p *plan, matches []match, limits map[key]*storageError,
) (counts clusterCounts, err error) {
	deployments := d.deploymentsOf(b)
	postponed := d.postponedByRollout(keyOf(b))
	var unready []fleet.NonReadyResource
	for _, m := range matches {
		namespace := registration.ClusterNamespace(m.cluster.Namespace, m.cluster.Name)
		deployment := deployments[namespace]
		if m.cluster.Spec.Quarantined {
			if deployment == nil && m.isKnown {
				counts.quarantined++
			}
			continue
		}
		if !m.isKnown && len(m.targets) == 0 { // there is nothing to render, and most of these Clusters were never targeted
			counts.isHeld = counts.isHeld || deployment != nil
			continue
		}
		v, err := p.variant(ctx, m.targets, m.cluster)
		if deployment != nil && err == nil && deployment.Spec.StagedDeploymentID == v.deploymentID {
			continue
		}
		if ctx.Err() != nil { // the pass has ended, and err says nothing about the Bundle
			return counts, ctx.Err()
		}
		if !m.isKnown {
			counts.isHeld = true
			continue
		}
		delete(deployments, namespace)
		entry := fleet.NonReadyResource{Name: keyOf(m.cluster).String(), State: fleet.WaitApplied}
		if err != nil {
			entry.State, entry.Message = fleet.ErrApplied, rollup.Shown(err.Error())
		} else if limit := limits[keyOf(m.cluster)]; limit != nil {
			entry.State, entry.Message = fleet.ErrApplied, rollup.Shown(limit.Error())
		} else if deployment == nil {
			entry.State, entry.Message = fleet.Pending, postponed[keyOf(m.cluster)]
		}
		rollup.Count(&counts.summary, entry.State, 1)
		counts.unavailable++
		unready = append(unready, entry)
	}
	for _, deployment := range deployments {
		state := fleetstatus.BundleState(deployment.Spec, deployment.Status)
		rollup.Count(&counts.summary, state, 1)
		if isUnavailable(deployment) {
			counts.unavailable++
		}
		if state != fleet.Ready {
			entry := rollup.NonReady(clusterOf(deployment).String(), deployment, state)
			if state == fleet.OutOfSync && entry.Message == "" || deployment.Spec.DeploymentID == "" {
				entry.Message = cmp.Or(postponed[clusterOf(deployment)], entry.Message)
			}
			unready = append(unready, entry)
		}
	}
	waits := make(map[string]bool, len(postponed))
	for cluster := range postponed {
		waits[cluster.String()] = true
	}
	counts.summary.NonReadyResources = rollup.WorstFirst(unready, waits)
	return counts, nil
}

// bundleResult returns condition Ready of a Bundle.
func bundleResult(p *problem, counts clusterCounts) result.Result {
	switch {
	case p != nil:
		return result.Stalled(p.reason, p.message)
	case counts.summary.DesiredReady == 0 && counts.quarantined > 0:
		return result.Done(fleet.ReasonNoClusters, fmt.Sprintf(
			"every Cluster that the targets match is quarantined (%d); nothing is deployed to it until the quarantine is lifted (muster release)", counts.quarantined))
	case counts.summary.DesiredReady == 0:
		return result.Done(fleet.ReasonNoClusters, "the targets match no Cluster")
	}
	return rollup.Ready("Cluster", counts.summary)
}

// removeFinalizer removes the finalizer that other fleet controllers put on BundleDeployments. This hub puts none on them.
func (d *Deployer) removeFinalizer(_ string, deployment *fleet.BundleDeployment) (*fleet.BundleDeployment, error) {
	if deployment == nil || deployment.DeletionTimestamp == nil || !slices.Contains(deployment.Finalizers, fleet.BundleDeploymentFinalizer) {
		return deployment, nil
	}
	ctx, cancel := d.Passes.Context()
	defer cancel()
	return writes.RemoveFinalizer(ctx, d.FleetClient.BundleDeployments(deployment.Namespace), deployment, fleet.BundleDeploymentFinalizer)
}
