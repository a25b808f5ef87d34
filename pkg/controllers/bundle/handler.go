package bundle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/controllers/leaving"
	"github.com/muster-fleet/muster/pkg/registration"
)

func splitKey(k string) key {
	namespace, name := kv.RSplit(k, "/")
	return key{Namespace: namespace, Name: name}
}

func (s *Step) onBundle(k string, b *fleet.Bundle) (*fleet.Bundle, error) {
	if b == nil {
		s.forgetBundle(splitKey(k))
		return nil, nil
	}
	if s.fresh.IsStale(b) {
		return b, nil
	}
	if b.DeletionTimestamp != nil {
		ctx, cancel := s.Passes.Context()
		defer cancel()
		return s.finalize(ctx, b)
	}
	b, err := s.addFinalizer(b)
	if err != nil {
		return b, err
	}
	s.announce(b)
	return s.report(b)
}

// forgetBundle brings the Clusters where something of the Bundle is left: somebody may have taken its finalizer off.
func (s *Step) forgetBundle(k key) {
	s.plans.forget(k)
	s.tally.forget(k)
	s.mu.Lock()
	delete(s.announced, k)
	s.mu.Unlock()
	left, _ := s.deployed.GetByIndex(byBundle, index.Key(k.Namespace, k.Name))
	for _, d := range left {
		s.bringClusterIn(d.Namespace, 0)
	}
}

func (s *Step) addFinalizer(b *fleet.Bundle) (*fleet.Bundle, error) {
	if slices.Contains(b.Finalizers, fleet.BundleFinalizer) {
		return b, nil
	}
	latest, err := writes.Merge(s.bundles, b, map[string]any{"metadata": map[string]any{
		"finalizers": append(slices.Clone(b.Finalizers), fleet.BundleFinalizer), "resourceVersion": b.ResourceVersion,
	}})
	if err == nil {
		s.fresh.Wrote(latest)
	}
	return latest, err
}

// deletions is how many BundleDeployments of one Bundle are deleted at a time.
const deletions = 16

// finalize deletes what was made of the Bundle, and lets it go when all of that is gone.
func (s *Step) finalize(ctx context.Context, b *fleet.Bundle) (*fleet.Bundle, error) {
	if !slices.Contains(b.Finalizers, fleet.BundleFinalizer) {
		return b, nil
	}
	left, err := s.deployed.GetByIndex(byBundle, index.Key(b.Namespace, b.Name))
	if err != nil {
		return b, err
	}
	if len(left) == 0 {
		return withoutFinalizer(s.bundles, b, fleet.BundleFinalizer)
	}
	if left, err = s.unasked(ctx, b, left); err != nil {
		return b, err
	}
	if len(left) == 0 {
		s.bundles.EnqueueAfter(b.Namespace, b.Name, farewellLook)
		return b, nil
	}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(deletions)
	for _, d := range left {
		if d.DeletionTimestamp == nil {
			work.Go(func() error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return s.delete(d)
			})
		}
	}
	return b, work.Wait() // the event of the last one brings the Bundle back
}

// farewellLook is how often it is looked whether an agent has left whose Bundle is deleted.
const farewellLook = 10 * time.Second

// unasked are the BundleDeployments of a deleted Bundle but for those by which agents are asked to leave. An agent's Bundle
// may be deleted before, together with the namespace; its BundleDeployment goes with the cluster namespace at the end of the
// farewell.
func (s *Step) unasked(ctx context.Context, b *fleet.Bundle, all []*fleet.BundleDeployment) ([]*fleet.BundleDeployment, error) {
	if !agentspec.IsBundle(b) {
		return all, nil
	}
	left := s.withoutLeaving(all, false)
	if len(left) == 0 {
		return nil, nil
	}
	withNamespace, err := leaving.WithNamespace(ctx, s.Kubernetes, b.Namespace)
	return s.withoutLeaving(left, withNamespace), err
}

func (s *Step) withoutLeaving(all []*fleet.BundleDeployment, withNamespace bool) []*fleet.BundleDeployment {
	return slices.DeleteFunc(slices.Clone(all), func(d *fleet.BundleDeployment) bool {
		clusters, _ := s.known.GetByIndex(byClusterNamespace, d.Namespace)
		return slices.ContainsFunc(clusters, func(c *fleet.Cluster) bool { return leaving.Is(c, withNamespace) })
	})
}

// announcement is what of a Bundle concerns Clusters.
type announcement struct {
	uid        types.UID
	generation int64
	labels     map[string]string
	agent      bool
}

func announcementOf(b *fleet.Bundle) announcement {
	return announcement{b.UID, b.Generation, b.Labels, agentspec.IsBundle(b)}
}

func (a announcement) is(b announcement) bool {
	return a.uid == b.uid && a.generation == b.generation && a.agent == b.agent && maps.Equal(a.labels, b.labels)
}

// announce brings the Clusters that a Bundle is for, or was, when it has changed for them. A Bundle that is seen for the
// first time and whose status is of its generation has not: after the start of a hub every Cluster is looked at anyway.
func (s *Step) announce(b *fleet.Bundle) {
	k, now := keyOf(b), announcementOf(b)
	s.mu.Lock()
	before, known := s.announced[k]
	s.announced[k] = now
	s.mu.Unlock()
	if known && before.is(now) || !known && b.Status.ObservedGeneration == b.Generation {
		return
	}
	expected := map[string]key{}
	for _, cluster := range s.targeted(b) {
		expected[registration.ClusterNamespace(cluster.Namespace, cluster.Name)] = key{Namespace: cluster.Namespace, Name: cluster.Name}
	}
	concerned := maps.Clone(expected)
	deployed, _ := s.deployed.GetByIndex(byBundle, index.Key(b.Namespace, b.Name))
	for _, d := range deployed {
		concerned[d.Namespace] = key{}
	}
	s.tally.expect(k, expected, s.Clock.Now())
	for namespace := range concerned {
		s.bringClusterIn(namespace, 0)
	}
}

// targeted are the Clusters a Bundle is for.
func (s *Step) targeted(b *fleet.Bundle) (clusters []*fleet.Cluster) {
	plan := s.plans.of(b)
	for _, cluster := range s.inReach(b) {
		away := cluster.DeletionTimestamp != nil || cluster.Labels[fleet.ClusterManagementLabel] != ""
		if !away && len(plan.choose(b, s.memberOf(cluster))) > 0 {
			clusters = append(clusters, cluster)
		}
	}
	return clusters
}

// inReach are the Clusters that targets may match: those they name, if all of them do.
func (s *Step) inReach(b *fleet.Bundle) (clusters []*fleet.Cluster) {
	for _, t := range b.Spec.Targets {
		if t.ClusterName == "" {
			clusters, _ = s.known.List(b.Namespace, labels.Everything())
			return clusters
		}
		if cluster, err := s.known.Get(b.Namespace, t.ClusterName); err == nil {
			clusters = append(clusters, cluster)
		}
		named, _ := s.known.GetByIndex(byDisplayName, index.Key(b.Namespace, t.ClusterName))
		clusters = append(clusters, named...)
	}
	return clusters
}

const (
	// countingPause is how long a hub that starts gives its counting of BundleDeployments before it looks again.
	countingPause = time.Second
	// patience is how long a new Bundle may take until its status says that nobody has reported yet.
	patience = 30 * time.Second
)

// report writes the status, once all that is known has been counted and no more changes come for a moment.
func (s *Step) report(b *fleet.Bundle) (*fleet.Bundle, error) {
	k, now := keyOf(b), s.Clock.Now()
	wait := s.tally.wait(k, now)
	if !s.counting.HasSynced() {
		wait = countingPause
	}
	summary, version := s.tally.summary(k)
	if wait == 0 && isSilent(b, summary) {
		if agentspec.IsBundle(b) {
			return b, nil // its Cluster says that the agent is awaited, and a report brings it back
		}
		wait = patience - now.Sub(b.CreationTimestamp.Time)
	}
	if wait > 0 {
		s.bundles.EnqueueAfter(b.Namespace, b.Name, wait)
		return b, nil
	}
	before, after := bare(b), bare(b)
	transition := s.setStatus(after, s.plans.of(b), summary)
	latest, written, err := writes.Status(s.bundles, before, after)
	if err != nil {
		return b, fmt.Errorf("Bundle: %w", err)
	}
	s.tally.wrote(k, version, now)
	if !written {
		return b, nil
	}
	s.fresh.Wrote(latest)
	transition.Record(s.Events, latest)
	return latest, nil
}

// isSilent says whether the first status would only say that nobody has reported yet, which will soon be wrong.
func isSilent(b *fleet.Bundle, s fleet.BundleSummary) bool {
	return b.Status.ObservedGeneration == 0 && s.DesiredReady > 0 && s.WaitApplied == s.DesiredReady
}

// bare leaves the resources out, which are big and not the status.
func bare(b *fleet.Bundle) *fleet.Bundle {
	return &fleet.Bundle{TypeMeta: b.TypeMeta, ObjectMeta: b.ObjectMeta, Status: *b.Status.DeepCopy()}
}

func (s *Step) setStatus(b *fleet.Bundle, p *plan, summary fleet.BundleSummary) *result.Transition {
	status := &b.Status
	status.ObservedGeneration = b.Generation
	status.ResourcesSHA256Sum = p.sum
	status.Summary = summary
	status.Unavailable = summary.DesiredReady - summary.Ready
	status.Display = fleet.BundleDisplay{ReadyClusters: fraction(summary), State: string(worst(summary))}
	before := result.Get(status.Conditions, fleet.ConditionReady)
	return result.Set(&status.Conditions, fleet.ConditionReady, discreet(before, bundleOutcome(p, summary)), s.Clock.Now())
}

func bundleOutcome(p *plan, summary fleet.BundleSummary) result.Result {
	switch {
	case p.problem != nil:
		return result.Stalled(p.problem.reason, p.problem.message)
	case summary.DesiredReady == 0:
		return result.Done(fleet.ReasonNoClusters, "the targets match no Cluster")
	}
	return ready("Cluster", summary)
}
