package bundle

import (
	"fmt"
	"maps"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// freeSize is the size up to which a BundleDeployment does not count: most are of a few kB, and a large workspace has many thousands of them.
const freeSize = 16 << 10

// storedBytes has, by workspace and cluster namespace, the bytes that the hub stores there in large BundleDeployments and in copies. A Bundle that a user
// writes once is stored for each Cluster, and the database of the API server serves all workspaces. A workspace is counted when its first large
// BundleDeployment or copy is written.
type storedBytes struct {
	mu         sync.Mutex
	workspaces map[string]*workspaceSizes
}

type workspaceSizes struct {
	total       int64
	byNamespace map[string]int64
}

func (w *workspaceSizes) set(namespace string, size int64) {
	w.total += size - w.byNamespace[namespace]
	if w.byNamespace[namespace] = size; size == 0 {
		delete(w.byNamespace, namespace)
	}
}

// set corrects the number of a cluster namespace, if the workspace is counted.
func (s *storedBytes) set(workspace, namespace string, size func() int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.workspaces[workspace]; w != nil {
		w.set(namespace, size())
		if w.total == 0 {
			delete(s.workspaces, workspace)
		}
	}
}

// add counts bytes that are about to be stored, and returns false if the workspace would exceed the limit with them. count returns the numbers of
// a workspace that is not counted yet.
func (s *storedBytes) add(workspace, namespace string, size, limit int64, count func() map[string]int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workspaces[workspace]
	if w == nil {
		w = &workspaceSizes{byNamespace: map[string]int64{}}
		for namespace, size := range count() {
			w.set(namespace, size)
		}
		if s.workspaces == nil {
			s.workspaces = map[string]*workspaceSizes{}
		}
		s.workspaces[workspace] = w
	}
	if w.total+size > limit {
		return false
	}
	w.set(namespace, w.byNamespace[namespace]+size)
	return true
}

// limitError reports that the hub does not store what a Bundle asks for.
type limitError struct {
	what  string // what would be stored, and for which Bundle
	size  int64
	limit int64
}

// Error names the Bundle, the size, the limit and what to do.
func (e *limitError) Error() string {
	return fmt.Sprintf("%s takes %d kB for each Cluster, and all that the hub stores of such a size for the Clusters of the workspace would take more than "+
		"%d MiB; make it smaller, select fewer Clusters, or raise bundles.workspaceLimitMiB of the hub", e.what, (e.size+1023)>>10, e.limit>>20)
}

// reserve counts bytes that the hub is about to store in the namespace of a Cluster, in addition to what is there. grown is negative or zero if they
// replace as many. Nothing that is stored already is refused, so that a smaller limit, or a larger one that was lowered again, stops no update that
// needs no more.
func (d *Deployer) reserve(cluster *fleet.Cluster, what string, size, grown int64) error {
	if grown <= 0 {
		return nil
	}
	limit := d.Config.Get().Bundles.WorkspaceLimit()
	count := func() map[string]int64 { return d.countStored(cluster.Namespace) }
	if !d.sizes.add(cluster.Namespace, registration.ClusterNamespace(cluster.Namespace, cluster.Name), grown, limit, count) {
		return &limitError{what, size, limit}
	}
	return nil
}

// recount corrects the number of a Cluster, at the beginning of a pass: something was deleted, or the pass before has not written all that it had
// counted.
func (d *Deployer) recount(cluster *fleet.Cluster, deployments []*fleet.BundleDeployment) {
	d.sizes.set(cluster.Namespace, registration.ClusterNamespace(cluster.Namespace, cluster.Name), func() int64 { return d.storedIn(cluster, deployments) })
}

// countStored returns what is stored for a workspace according to the caches, by cluster namespace.
func (d *Deployer) countStored(workspace string) map[string]int64 {
	stored := map[string]int64{}
	clusters, _ := d.clusterCache.List(workspace, labels.Everything())
	for _, cluster := range clusters {
		namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
		deployments, _ := d.deploymentCache.List(namespace, labels.Everything())
		if size := d.storedIn(cluster, deployments); size > 0 {
			stored[namespace] = size
		}
	}
	return stored
}

// storedIn returns the size of the BundleDeployments of a Cluster, and of the copies that they name.
func (d *Deployer) storedIn(cluster *fleet.Cluster, deployments []*fleet.BundleDeployment) (size int64) {
	namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	copied := map[string]copySource{}
	for _, deployment := range deployments {
		if !isFromWorkspace(deployment, cluster.Namespace) {
			continue
		}
		size += storedSize(deployment)
		for _, s := range sourcesOf(deployment) {
			copied[s.String()] = s
		}
	}
	for s := range maps.Values(copied) {
		if known := d.copies.find(s.kind, key{Namespace: namespace, Name: s.name}); known != nil {
			version, _ := parseCopyVersion(known)
			size += version.size
		}
	}
	return size
}

// storedSize returns the size of a BundleDeployment with its Helm values, 0 if it does not count.
func storedSize(deployment *fleet.BundleDeployment) int64 {
	if deployment == nil {
		return 0
	}
	size, _ := strconv.ParseInt(deployment.Labels[fleet.SizeLabel], 10, 64)
	return max(0, size)
}

// wantedSize returns the size of a BundleDeployment with its Helm values, which it will have: the options and the values are in it twice. While it is
// postponed, one of the two is what it has now.
func (p *plan) wantedSize(v variant, isPostponed bool, existing *fleet.BundleDeployment) int64 {
	size := int64(p.commonSize + 2*v.size)
	if size <= freeSize {
		size = 0
	}
	if isPostponed {
		size = max(size, storedSize(existing))
	}
	return size
}

// noteLimit remembers whether the limit keeps a Cluster from a Bundle. The status of the Bundle reports it.
func (d *Deployer) noteLimit(bundle, cluster key, err error) {
	d.mu.Lock()
	before, now := d.limited[bundle][cluster], ""
	if err != nil {
		now = err.Error()
	}
	switch {
	case now == "" && before != "":
		delete(d.limited[bundle], cluster)
		if len(d.limited[bundle]) == 0 {
			delete(d.limited, bundle)
		}
	case now != "":
		if d.limited[bundle] == nil {
			d.limited[bundle] = map[key]string{}
		}
		d.limited[bundle][cluster] = now
	}
	d.mu.Unlock()
	if now != before {
		d.bundleChanged(bundle)
	}
}

// forgetLimits drops what noteLimit has remembered of a deleted Cluster.
func (d *Deployer) forgetLimits(cluster key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for bundle, clusters := range d.limited {
		if delete(clusters, cluster); len(clusters) == 0 {
			delete(d.limited, bundle)
		}
	}
}

// limitedClusters returns the Clusters that the limit keeps from a Bundle, each with the error.
func (d *Deployer) limitedClusters(bundle key) map[key]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.limited[bundle])
}

// limitProblem returns the problem of a Bundle that the limit keeps from one of the Clusters that it targets, or nil.
func limitProblem(limited map[key]string, matches []match) *problem {
	message := ""
	for _, m := range matches {
		if text := limited[keyOf(m.cluster)]; text != "" && (message == "" || text < message) { // the same in each pass
			message = text
		}
	}
	if message == "" {
		return nil
	}
	return &problem{fleet.ReasonWorkspaceLimitReached, message}
}
