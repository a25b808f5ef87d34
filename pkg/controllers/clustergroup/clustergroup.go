// Package clustergroup keeps the status of ClusterGroups: how many Clusters a group selects, and the sums of their status.
package clustergroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const name = "clustergroup"

// delayPerGroup limits the writes of status to ten a second for each workspace, however many groups select the Clusters that change all the
// time: a tenant who makes a hundred groups of all Clusters would otherwise take the API server's time from the others.
const delayPerGroup = 100 * time.Millisecond

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

// noteCluster notes a Cluster if its change also changes the status of the groups that select it.
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
	groups = slices.DeleteFunc(groups, func(group *fleet.ClusterGroup) bool {
		selector, err := h.selectors.Of(group)
		return err != nil || !changed.All && !slices.ContainsFunc(versions, func(set labels.Set) bool { return ctx.Err() != nil || selector.Matches(set) })
	})
	delay := max(h.StatusDelay(), time.Duration(len(groups))*delayPerGroup)
	for _, group := range groups {
		h.queue.EnqueueAfter(group.Namespace, group.Name, delay)
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

// MaxSelector is the number of labels, expressions and values that the selector of a ClusterGroup may have. The hub matches it with each
// Cluster of the workspace, and each of its values takes time. A group that lists the names of 9,000 Clusters has 9,001.
const MaxSelector = 10_000

// Selectors compiles the selector of each ClusterGroup once, because a large one takes milliseconds and is matched with each Cluster of the
// workspace. The zero value is ready to use, also by several goroutines.
type Selectors struct {
	mu    sync.Mutex
	byKey map[types.NamespacedName]compiled
}

type compiled struct {
	uid        types.UID
	generation int64
	compile    func() (labels.Selector, error)
}

// Of returns the selector of a group. A group without a selector selects no Cluster; after an error it is not known which Clusters a group selects. The
// selector is compiled without the lock, so that the selectors of other groups can be found meanwhile.
func (s *Selectors) Of(group *fleet.ClusterGroup) (labels.Selector, error) {
	if group.Spec.MetadataTooLarge { // a change of labels is not a new generation
		return Compile(group)
	}
	return s.find(group).compile()
}

func (s *Selectors) find(group *fleet.ClusterGroup) compiled {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := types.NamespacedName{Namespace: group.Namespace, Name: group.Name}
	known, found := s.byKey[key]
	if !found || known.uid != group.UID || known.generation != group.Generation {
		known = compiled{group.UID, group.Generation, sync.OnceValues(func() (labels.Selector, error) { return Compile(group) })}
		if s.byKey == nil {
			s.byKey = map[types.NamespacedName]compiled{}
		}
		s.byKey[key] = known
	}
	return known
}

// Forget drops the selector of a deleted group.
func (s *Selectors) Forget(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, types.NamespacedName{Namespace: namespace, Name: name})
}

// Compile returns the selector of a group and keeps nothing. Its errors name the field.
func Compile(group *fleet.ClusterGroup) (labels.Selector, error) {
	if group.Spec.MetadataTooLarge {
		return nil, errors.New(registration.TooLarge(group.Spec.Excess, registration.MetadataTooLarge))
	}
	if isTooLarge(group.Spec.Selector) {
		return nil, fmt.Errorf("spec.selector has more than %d labels, expressions and values; use several groups", MaxSelector)
	}
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	return selector, nil
}

func isTooLarge(selector *metav1.LabelSelector) bool { return size(selector) > MaxSelector }

// Size is the number of labels, expressions and values in the selector of a group.
func Size(group *fleet.ClusterGroup) int { return size(group.Spec.Selector) }

func size(selector *metav1.LabelSelector) (n int) {
	if selector == nil {
		return 0
	}
	for _, e := range selector.MatchExpressions {
		n += len(e.Values)
	}
	return n + len(selector.MatchLabels) + len(selector.MatchExpressions)
}

// tooLarge stands in caches for all selectors that are too large.
var tooLarge = &metav1.LabelSelector{MatchExpressions: make([]metav1.LabelSelectorRequirement, MaxSelector+1)}

// Reduce is the transform of the cache of ClusterGroups. It drops a selector that is too large, so that no user can fill the memory of the
// hub with it; the group still counts as one whose selector is too large.
func Reduce(object any) (any, error) {
	if group, ok := object.(*fleet.ClusterGroup); ok && isTooLarge(group.Spec.Selector) {
		group.Spec.Selector = tooLarge
	}
	return object, nil
}
