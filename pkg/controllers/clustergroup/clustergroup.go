// Package clustergroup keeps the status of ClusterGroups: how many Clusters a group selects, and the sums of their status.
package clustergroup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/kv"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

const name = "clustergroup"

type handler struct {
	*app.Context
	groups    fleetcontrollers.ClusterGroupCache
	clusters  fleetcontrollers.ClusterCache
	written   expectations.Expectations
	selectors *Selectors
	queue     enqueue.Enqueuer
	changes   *enqueue.Changes[changedClusters]
}

// Register registers the controller. It watches ClusterGroups, and the Clusters that they select.
func Register(ctx context.Context, c *app.Context, selectors *Selectors) {
	groups, clusters := c.Fleet.ClusterGroup(), c.Fleet.Cluster()
	h := &handler{
		Context: c, groups: groups.Cache(), clusters: clusters.Cache(), written: expectations.Expectations{Clock: c.Clock}, selectors: selectors,
		queue: groups, changes: &enqueue.Changes[changedClusters]{Queue: groups, MarkAll: (*changedClusters).MarkAll},
	}
	groups.OnChange(ctx, name, app.Handler(c.Passes, name, h.onChange))
	enqueue.OnEvent(clusters, h.noteCluster)
}

// noteCluster notes a Cluster of which the status of its groups shows something else now.
func (h *handler) noteCluster(before, after *fleet.Cluster) {
	if before != nil && after != nil && maps.Equal(before.Labels, after.Labels) && before.Status.ResourceCounts == after.Status.ResourceCounts &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) && equality.Semantic.DeepEqual(before.Status.Summary, after.Status.Summary) {
		return
	}
	version := cmp.Or(before, after)
	h.changes.Note(version.Namespace, func(c *changedClusters) { c.Add(version.Name, version.Labels, len(version.Labels), maps.Equal) })
}

// changedClusters are the Clusters of a workspace that have changed since the last call of enqueueGroups, with their labels before.
type changedClusters = enqueue.EarlierVersions[map[string]string]

// enqueueGroups enqueues the groups that select one of the Clusters, or have selected it with the labels that it had before. When ctx ends it
// enqueues the others without matching them: a pass over a group whose status is right writes nothing.
func (h *handler) enqueueGroups(ctx context.Context, workspace string, changed changedClusters) {
	var versions []labels.Set
	for name, before := range changed.ByName {
		for _, version := range before {
			versions = append(versions, version)
		}
		if current, err := h.clusters.Get(workspace, name); err == nil {
			versions = append(versions, current.Labels)
		}
	}
	end, err := h.Matching.Begin(ctx, workspace)
	defer end()
	changed.All = changed.All || err != nil
	groups, _ := h.groups.List(workspace, labels.Everything())
	for _, group := range groups {
		if selector, err := h.selectors.Of(group); err != nil {
			continue
		} else if changed.All || slices.ContainsFunc(versions, func(set labels.Set) bool { return ctx.Err() != nil || selector.Matches(set) }) {
			h.queue.EnqueueAfter(group.Namespace, group.Name, h.StatusDelay())
		}
	}
}

// onChange keeps the status of a group. The queue of groups also has the keys of workspaces in which Clusters have changed.
func (h *handler) onChange(key string, group *fleet.ClusterGroup) (*fleet.ClusterGroup, error) {
	ctx, cancel := h.Passes.Context()
	defer cancel()
	isWorkspace := h.changes.HandleKey(key, func(workspace string, changed changedClusters) { h.enqueueGroups(ctx, workspace, changed) })
	if isWorkspace {
		return nil, nil
	}
	if group == nil {
		h.selectors.Forget(kv.RSplit(key, "/"))
		return nil, nil
	}
	if group.DeletionTimestamp != nil || h.written.IsStale(group) {
		return group, nil
	}
	after := group.DeepCopy()
	processed, ready := result.Done(fleet.ReasonProcessed, ""), result.Skip()
	if selector, err := h.selectors.Of(group); err != nil {
		processed = result.Stalled(fleet.ReasonError, err.Error())
	} else {
		clusters, err := h.selectedBy(ctx, group, selector)
		if err != nil {
			return group, err
		}
		ready = sum(&after.Status, clusters)
	}
	result.Set(&after.Status.Conditions, fleet.ConditionReady, ready, h.Clock.Now())
	transition := result.Set(&after.Status.Conditions, fleet.ConditionProcessed, processed, h.Clock.Now())
	latest, changed, err := writes.Status(ctx, h.FleetClient.ClusterGroups(group.Namespace), group, after)
	if err != nil {
		return group, fmt.Errorf("updating a ClusterGroup: %w", err)
	}
	if changed {
		h.written.Wrote(latest)
		transition.Record(h.Events, latest)
	}
	return latest, nil
}

func (h *handler) selectedBy(ctx context.Context, group *fleet.ClusterGroup, selector labels.Selector) ([]*fleet.Cluster, error) {
	end, err := h.Matching.Begin(ctx, group.Namespace)
	if err != nil {
		return nil, err
	}
	defer end()
	return h.clusters.List(group.Namespace, selector)
}

// sum sets the status of a group of these Clusters, and returns its condition Ready.
func sum(status *fleet.ClusterGroupStatus, clusters []*fleet.Cluster) result.Result {
	clusters = slices.DeleteFunc(slices.Clone(clusters), func(c *fleet.Cluster) bool { return c.DeletionTimestamp != nil })
	slices.SortFunc(clusters, func(a, b *fleet.Cluster) int { return strings.Compare(a.Name, b.Name) })
	var summary fleet.BundleSummary
	var resources fleet.ResourceCounts
	var unready []string
	for _, cluster := range clusters {
		rollup.AddSummary(&summary, cluster.Status.Summary)
		rollup.AddResources(&resources, cluster.Status.ResourceCounts)
		if s := cluster.Status.Summary; s.Ready != s.DesiredReady {
			unready = append(unready, cluster.Name)
		}
	}
	listed := slices.Clone(unready[:min(len(unready), rollup.MaxListed)])
	status.ClusterCount, status.NonReadyClusterCount, status.NonReadyClusters = len(clusters), len(unready), listed
	status.Summary, status.ResourceCounts = summary, resources
	status.Display = fleet.ClusterGroupDisplay{
		ReadyClusters: fmt.Sprintf("%d/%d", len(clusters)-len(unready), len(clusters)),
		ReadyBundles:  rollup.Fraction(summary),
		State:         string(rollup.Worst(summary)),
	}
	if len(listed) > 0 {
		status.Display.ReadyClusters += fmt.Sprintf(" (%s)", strings.Join(listed, ", "))
	}
	if rollup.Worst(summary) == "" {
		return result.Done(fleet.ReasonAllReady, "")
	}
	return result.Stalled(fleet.ReasonNotReady, rollup.FleetMessage("Bundle", summary)).WithoutEvent()
}
