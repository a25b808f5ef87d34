package bundle

import (
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// typed are the handlers of one kind's events. They are called for every event, one after the other, so they only count
// and enqueue.
type typed[T metav1.Object] struct {
	added   func(object T, atStart bool)
	changed func(before, after T)
	gone    func(object T)
}

// OnAdd is called for a new object, and for each that was there at the start.
func (h typed[T]) OnAdd(object any, atStart bool) {
	if o, ok := object.(T); ok {
		h.added(o, atStart)
	}
}

// OnUpdate is called for a change, and for each object when the informer was away.
func (h typed[T]) OnUpdate(before, after any) {
	b, okBefore := before.(T)
	a, okAfter := after.(T)
	if okBefore && okAfter && b.GetResourceVersion() != a.GetResourceVersion() {
		h.changed(b, a)
	}
}

// OnDelete is called when an object is gone.
func (h typed[T]) OnDelete(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if o, ok := object.(T); ok {
		h.gone(o)
	}
}

// deploymentAdded only counts those that are there at the start: each Cluster is looked at then anyway.
func (s *Step) deploymentAdded(d *fleet.BundleDeployment, atStart bool) {
	s.created.Observed(keyOf(d).String())
	if atStart {
		s.tally.put(d, s.Clock.Now())
		return
	}
	s.count(d)
	s.bringCluster(d.Namespace)
}

// count counts a BundleDeployment as it is now, and brings its Bundle if that changes anything.
func (s *Step) count(d *fleet.BundleDeployment) bool {
	counts := s.tally.put(d, s.Clock.Now())
	if counts {
		s.bringBundle(bundleOf(d))
	}
	return counts
}

// deploymentChanged passes by what agents report without changing what is shown of it.
func (s *Step) deploymentChanged(before, after *fleet.BundleDeployment) {
	counts := s.count(after)
	if counts && bundleOf(before) != bundleOf(after) {
		s.bringBundle(bundleOf(before))
	}
	if counts || respecified(before, after) {
		s.bringCluster(after.Namespace)
	}
	needed := contentsOf(after)
	for _, content := range contentsOf(before) {
		if !slices.Contains(needed, content) {
			s.contents.consider(content)
		}
	}
}

func (s *Step) deploymentGone(d *fleet.BundleDeployment) {
	s.created.Observed(keyOf(d).String())
	s.deleted.Observed(string(d.UID))
	s.tally.remove(keyOf(d), s.Clock.Now())
	s.bringBundle(bundleOf(d))
	s.bringCluster(d.Namespace)
	for _, content := range contentsOf(d) {
		s.contents.consider(content)
	}
}

func respecified(before, after *fleet.BundleDeployment) bool {
	return before.Generation != after.Generation || !maps.Equal(before.Labels, after.Labels) ||
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil)
}

// bringBundle has the status of a Bundle written when no more changes come for a moment. One that is being deleted has no
// reason to wait.
func (s *Step) bringBundle(k key) {
	b, err := s.bundleCache.Get(k.Namespace, k.Name)
	if err != nil {
		return
	}
	delay := settle
	if b.DeletionTimestamp != nil {
		delay = 0
	}
	s.bundles.EnqueueAfter(k.Namespace, k.Name, delay)
}

// bringCluster has the Cluster of a cluster namespace looked at when no more changes come for a moment.
func (s *Step) bringCluster(namespace string) { s.bringClusterIn(namespace, settle) }

func (s *Step) bringClusterIn(namespace string, delay time.Duration) {
	found, _ := s.known.GetByIndex(byClusterNamespace, namespace)
	for _, cluster := range found {
		s.clusters.EnqueueAfter(cluster.Namespace, cluster.Name, delay)
	}
}

func (s *Step) groupAdded(group *fleet.ClusterGroup, atStart bool) {
	if !atStart {
		s.bringGroups(group)
	}
}

func (s *Step) groupChanged(before, after *fleet.ClusterGroup) {
	if !reflect.DeepEqual(before.Spec, after.Spec) || !maps.Equal(before.Labels, after.Labels) {
		s.bringGroups(before, after)
	}
}

func (s *Step) groupGone(group *fleet.ClusterGroup) { s.bringGroups(group) }

// bringGroups brings the Clusters that are in any of these versions of a group.
func (s *Step) bringGroups(versions ...*fleet.ClusterGroup) {
	all, _ := s.known.List(versions[0].Namespace, labels.Everything())
	for _, cluster := range all {
		for _, group := range versions {
			if selects(group, cluster.Labels) {
				s.clusters.EnqueueAfter(cluster.Namespace, cluster.Name, 0)
				break
			}
		}
	}
}

// contentAdded considers those as well that are there at the start: whoever made them may not have lived to name them.
func (s *Step) contentAdded(object any) {
	if c, ok := object.(*metav1.PartialObjectMetadata); ok {
		s.contents.made.Observed(c.Name)
		s.contents.consider(c.Name)
	}
}

// contentGone brings the Clusters that need it, so that it is made again.
func (s *Step) contentGone(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	c, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return
	}
	s.contents.forget(c.Name)
	for _, user := range s.contents.usedBy(c.Name) {
		s.bringClusterIn(user.Namespace, 0)
	}
}
