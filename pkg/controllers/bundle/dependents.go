package bundle

import (
	"context"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
)

// changedObjects are the objects of a workspace that have changed since the last call of enqueueDependents.
type changedObjects struct {
	clusters enqueue.EarlierVersions[map[string]string] // their labels before
	groups   enqueue.EarlierVersions[*fleet.ClusterGroup]
	sources  enqueue.EarlierVersions[changedSource]
}

func (c *changedObjects) markAll() {
	c.clusters.MarkAll()
	c.groups.MarkAll()
	c.sources.MarkAll()
}

// enqueueDependents enqueues the Bundles and Clusters that depend on the changes in a workspace. When ctx ends it enqueues the others
// without matching them: a pass over an object that does not depend on the changes writes nothing.
func (d *Deployer) enqueueDependents(ctx context.Context, workspace string, c changedObjects) {
	if c.clusters.All || len(c.clusters.ByName) > 0 {
		d.enqueueBundlesOfClusters(ctx, workspace, c.clusters)
	}
	if c.groups.All || len(c.groups.ByName) > 0 {
		d.enqueueDependentsOfGroups(ctx, workspace, c.groups)
	}
	if c.sources.All || len(c.sources.ByName) > 0 {
		d.enqueueClustersOfSources(workspace, c.sources)
	}
}

// enqueueBundlesOfClusters enqueues the Bundles that target one of the Clusters, with its current labels or with earlier ones. Most Bundles
// with selectors match one of the first Clusters, and are not matched with the others.
func (d *Deployer) enqueueBundlesOfClusters(ctx context.Context, workspace string, clusters enqueue.EarlierVersions[map[string]string]) {
	end, err := d.Matching.Begin(ctx, workspace)
	defer end()
	clusters.All = clusters.All || err != nil
	if clusters.All {
		all, _ := d.bundleCache.List(workspace, labels.Everything())
		for _, b := range all {
			d.bundleChanged(keyOf(b))
		}
		return
	}
	selecting, groups := d.bundlesByTargets(anyKey(workspace)), d.groupsOf(workspace)
	for name, versions := range clusters.ByName {
		if current, err := d.clusterCache.Get(workspace, name); err == nil {
			versions = append(versions, current.Labels)
		}
		for _, version := range versions {
			cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name, Labels: version}}
			m := candidateOf(cluster, groups)
			enqueueIfTargeted := func(b *fleet.Bundle) bool {
				if p := d.plans.of(ctx, b); p.err == nil && ctx.Err() == nil {
					if targets, isKnown := p.choose(b, m); isKnown && len(targets) == 0 {
						return false
					}
				}
				d.bundleChanged(keyOf(b))
				return true
			}
			selecting = slices.DeleteFunc(selecting, enqueueIfTargeted)
			for _, b := range d.bundlesByTargets(nameKeys(cluster)...) {
				enqueueIfTargeted(b)
			}
		}
	}
}

// groupVersion is a version of a ClusterGroup. The selector is nil if it is not known which Clusters the group selects.
type groupVersion struct {
	selector labels.Selector
	labels   map[string]string
}

func newGroupVersion(group *fleet.ClusterGroup) groupVersion {
	selector, _ := clustergroup.Compile(group)
	return groupVersion{selector, group.Labels}
}

// isSameFor reports whether two versions are the same for targets that select Clusters by groups.
func (v groupVersion) isSameFor(cluster *fleet.Cluster, other groupVersion) bool {
	if v.selector == nil || other.selector == nil {
		return false
	}
	selects := func(v groupVersion) bool { return v.selector.Matches(labels.Set(cluster.Labels)) }
	if !selects(v) {
		return !selects(other)
	}
	return selects(other) && maps.Equal(v.labels, other.labels)
}

// enqueueDependentsOfGroups enqueues the Clusters that a ClusterGroup began or ceased to select, or selects with other labels, and the Bundles
// that a group may assign to other partitions. If it is or was not known which Clusters a group selects, it enqueues all of them, and the Bundles that
// select groups: their status says so, and perhaps no BundleDeployment is written whose event would enqueue them.
func (d *Deployer) enqueueDependentsOfGroups(ctx context.Context, workspace string, groups enqueue.EarlierVersions[*fleet.ClusterGroup]) {
	end, err := d.Matching.Begin(ctx, workspace)
	defer end()
	groups.All = groups.All || err != nil
	var changes [][]groupVersion // the versions of each group, the current one first
	for name, earlier := range groups.ByName {
		current := newGroupVersion(&fleet.ClusterGroup{}) // of a deleted group
		if group, err := d.groupCache.Get(workspace, name); err == nil {
			current = newGroupVersion(group)
		}
		versions := []groupVersion{current}
		for _, group := range earlier {
			versions = append(versions, newGroupVersion(group))
		}
		changes = append(changes, versions)
	}
	isUnknown := func(versions []groupVersion) bool {
		return slices.ContainsFunc(versions, func(v groupVersion) bool { return v.selector == nil })
	}
	toAll := groups.All || slices.ContainsFunc(changes, isUnknown)
	clusters, _ := d.clusterCache.List(workspace, labels.Everything())
	for _, cluster := range clusters {
		depends := func(versions []groupVersion) bool {
			return slices.ContainsFunc(versions[1:], func(v groupVersion) bool { return !v.isSameFor(cluster, versions[0]) })
		}
		if toAll || ctx.Err() != nil || slices.ContainsFunc(changes, depends) {
			d.clusters.EnqueueAfter(cluster.Namespace, cluster.Name, 0)
		}
	}
	bundles, _ := d.bundleCache.List(workspace, labels.Everything())
	for _, b := range bundles {
		if hasPartitionOfGroup(b.Spec.RolloutStrategy) || toAll && d.plans.of(ctx, b).selectsGroups() {
			d.bundleChanged(keyOf(b))
		}
	}
}

// changedSource is a Secret or ConfigMap that has changed.
type changedSource struct {
	copySource
	uid types.UID
}

// enqueueClustersOfSources enqueues the Clusters with a BundleDeployment of a Bundle that names one of the Secrets and ConfigMaps. A Cluster that gets
// a BundleDeployment later reads the sources then. So the work depends on what is deployed, and not on the number of targets. It also enqueues the
// Clusters with an earlier copy: the BundleDeployment of a Cluster for which a rollout waits, for example, names the sources of an earlier Bundle.
func (d *Deployer) enqueueClustersOfSources(workspace string, sources enqueue.EarlierVersions[changedSource]) {
	if sources.All {
		clusters, _ := d.clusterCache.List(workspace, labels.Everything())
		for _, cluster := range clusters {
			d.clusters.EnqueueAfter(cluster.Namespace, cluster.Name, 0)
		}
		return
	}
	changed := map[string]bool{}
	bundles := map[key]bool{}       // true if the sources of the Bundle are known
	namespaces := map[string]bool{} // of the Clusters
	for _, versions := range sources.ByName {
		changed[versions[0].String()] = true
		naming, _ := d.bundleCache.GetByIndex(bySource, sourceKey(workspace, versions[0].copySource))
		for _, b := range naming {
			bundles[keyOf(b)] = true
		}
		for _, source := range versions {
			for _, namespace := range d.copies.withEarlierCopy(workspace, source) {
				namespaces[namespace] = true
			}
		}
	}
	unknown, _ := d.bundleCache.GetByIndex(bySource, unknownSourcesKey(workspace))
	for _, b := range unknown {
		bundles[keyOf(b)] = false
	}
	isChanged := func(s copySource) bool { return changed[s.String()] }
	for bundle, isKnown := range bundles { // each once, however many of its sources have changed
		deployments, _ := d.deploymentsOfBundle(bundle)
		for _, deployment := range deployments {
			if isKnown || slices.ContainsFunc(sourcesOf(deployment), isChanged) {
				namespaces[deployment.Namespace] = true
			}
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		d.enqueueCluster(namespace, 0)
	}
}

func hasPartitionOfGroup(s *fleet.RolloutStrategy) bool {
	return s != nil && slices.ContainsFunc(s.Partitions, func(p fleet.Partition) bool { return p.ClusterGroup != "" || p.ClusterGroupSelector != nil })
}
