package bundle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/registration"
)

// freeSize is the size up to which a BundleDeployment is small. Most are of a few kB, and a large workspace has many thousands of them. Their sizes are
// not counted, only their number: see smallCount.
const freeSize = 16 << 10

const (
	freeDeployments   = 100_000          // small BundleDeployments of a workspace that do not count
	smallSize         = 2 << 10          // what each further one counts
	smallCountRefresh = 10 * time.Second // the interval at which they are counted again, at most
)

// storedBytes has the workspaces in which the hub has stored a large BundleDeployment or a copy. A Bundle that a user writes once is stored for each
// Cluster, and the database of the API server serves all workspaces.
type storedBytes struct {
	mu         sync.Mutex
	workspaces map[string]*workspaceSizes
	small      map[string]*smallCount // by workspace
}

// smallCount is the number of small BundleDeployments of a workspace. It is counted from the cache when it matters. Between, it only grows with those
// that the hub creates, so that a pass costs nothing while a workspace has fewer than freeDeployments.
type smallCount struct {
	mu        sync.Mutex
	number    int
	countedAt time.Time
}

// smallOf returns the number of small BundleDeployments of a workspace, which may not be counted yet.
func (s *storedBytes) smallOf(workspace string) *smallCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.small[workspace] == nil {
		put(&s.small, workspace, &smallCount{})
	}
	return s.small[workspace]
}

// reserve counts a BundleDeployment that is about to be created. It returns false if it would take more than the rest of the limit. count counts those
// in the cache, which is exact enough: what the cache does not show yet is created only once.
func (c *smallCount) reserve(rest int64, now time.Time, count func() int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(now, count)
	if bytes := smallBytes(c.number + 1); bytes > 0 && bytes > rest {
		return false
	}
	c.number++
	return true
}

// bytes returns what the small BundleDeployments count.
func (c *smallCount) bytes(now time.Time, count func() int) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(now, count)
	return smallBytes(c.number)
}

// refresh counts them again, if that matters. The caller has locked mu.
func (c *smallCount) refresh(now time.Time, count func() int) {
	if c.countedAt.IsZero() || c.number >= freeDeployments && now.Sub(c.countedAt) >= smallCountRefresh {
		c.number, c.countedAt = count(), now
	}
}

func smallBytes(number int) int64 { return int64(max(0, number-freeDeployments)) * smallSize }

// workspaceSizes has, by cluster namespace, the bytes that the hub stores there in large BundleDeployments and in copies.
type workspaceSizes struct {
	counted sync.Once // from the caches

	mu          sync.Mutex
	total       int64
	byNamespace map[string]map[string]storedSize // by BundleDeployment or copy
}

// storedSize is the size of a BundleDeployment or a copy. reserved is when the hub was about to write it: for expectations.Timeout the caches may have
// an earlier size, or none.
type storedSize struct {
	bytes    int64
	reserved time.Time
}

// of returns the sizes of a workspace, which may not be counted yet.
func (s *storedBytes) of(workspace string) *workspaceSizes {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.workspaces[workspace] == nil {
		put(&s.workspaces, workspace, &workspaceSizes{byNamespace: map[string]map[string]storedSize{}})
	}
	return s.workspaces[workspace]
}

// find returns the sizes of a workspace, or nil if it has nothing that counts.
func (s *storedBytes) find(workspace string) *workspaceSizes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.workspaces[workspace]
}

// forget drops the sizes of a deleted Cluster, and the workspace if nothing is stored there any more.
func (s *storedBytes) forget(workspace, namespace string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.workspaces[workspace]; w != nil {
		if total, _ := w.set(namespace, nil, now); total == 0 {
			delete(s.workspaces, workspace)
		}
	}
}

// set replaces the sizes of a cluster namespace by those in the caches, and returns the new total. A larger size that was reserved after the given time
// stays, which it reports: otherwise a pass whose caches lack what an earlier pass has just written would give the same bytes to another Cluster.
func (w *workspaceSizes) set(namespace string, cached map[string]int64, since time.Time) (total int64, stays bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sizes := map[string]storedSize{}
	for item, bytes := range cached {
		sizes[item] = storedSize{bytes: bytes}
	}
	for item, known := range w.byNamespace[namespace] {
		w.total -= known.bytes
		if known.reserved.After(since) && known.bytes > sizes[item].bytes {
			sizes[item], stays = known, true
		}
	}
	for _, size := range sizes {
		w.total += size.bytes
	}
	if w.byNamespace[namespace] = sizes; len(sizes) == 0 {
		delete(w.byNamespace, namespace)
	}
	return w.total, stays
}

// sum returns the bytes of the workspace.
func (w *workspaceSizes) sum() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// reserve counts an item that is about to be stored in place of something of which so many bytes are counted. It returns false if the workspace would
// exceed the limit. An item that is reserved again, because the caches do not show it yet, is counted once.
func (w *workspaceSizes) reserve(namespace, item string, size, counted, limit int64, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	grown := size - max(counted, w.byNamespace[namespace][item].bytes)
	switch {
	case grown <= 0:
		return true
	case w.total+grown > limit:
		return false
	}
	w.total += grown
	if w.byNamespace[namespace] == nil {
		w.byNamespace[namespace] = map[string]storedSize{}
	}
	w.byNamespace[namespace][item] = storedSize{w.byNamespace[namespace][item].bytes + grown, now}
	return true
}

// storageExcess is the size that the storage limit of the workspace refuses for a Cluster: of a copy, or of options and Helm values if the source is empty.
// It is 0 for a small BundleDeployment.
type storageExcess struct {
	size   int64
	source copySource
}

// storageError reports that the hub does not store what a Bundle asks for.
type storageError struct {
	bundle key
	storageExcess
	limit int64
}

// Error names the Bundle, the size, the limit and what to do.
func (e *storageError) Error() string {
	if e.size == 0 {
		return fmt.Sprintf("no BundleDeployment is created for Bundle %s: this workspace has more than %d small ones, of which each further one counts %d kB, "+
			"and they, the large ones and the copies would take more than %d MiB; delete Bundles, select fewer Clusters, or raise "+
			"bundles.workspaceLimitMiB of the hub", e.bundle, freeDeployments, smallSize>>10, e.limit>>20)
	}
	what := fmt.Sprintf("what Bundle %s has in options and Helm values", e.bundle)
	if e.source != (copySource{}) {
		what = fmt.Sprintf("%s, which Bundle %s names in %s,", e.source, e.bundle, e.source.field())
	}
	return fmt.Sprintf("%s takes %d kB for each Cluster, and the large BundleDeployments and copies of this workspace would take more than "+
		"%d MiB; make it smaller, select fewer Clusters, or raise bundles.workspaceLimitMiB of the hub", what, (e.size+1023)>>10, e.limit>>20)
}

// noteStorageExcess adds the size to those of the Bundles, if an error is that of the limit: of the Bundle that it names, and of those with these
// BundleDeployments.
func noteStorageExcess(overStorage map[key]storageExcess, err error, dependents ...*fleet.BundleDeployment) {
	var limit *storageError
	if !errors.As(err, &limit) {
		return
	}
	overStorage[limit.bundle] = limit.storageExcess
	for _, dependent := range dependents {
		overStorage[bundleOf(dependent)] = limit.storageExcess
	}
}

// reserveStorage counts what the hub is about to store in the namespace of a Cluster in place of something of which it has counted so many bytes. Nothing
// that is stored already is refused, so that a smaller limit, or a larger one that was lowered again, stops no update that needs no more. stored
// returns the size of what Fleet's hub has stored there, which this hub has not counted. It is called only at the limit, because it sends requests.
func (d *Deployer) reserveStorage(cluster *fleet.Cluster, bundle key, wanted storageExcess, counted int64, stored func() (int64, error)) error {
	if wanted.size <= counted {
		return nil
	}
	sizes, limit := d.sizes.of(cluster.Namespace), d.Config.Get().Bundles.WorkspaceLimit()
	sizes.counted.Do(func() { d.countStored(cluster.Namespace, sizes) })
	namespace, item, now := registration.ClusterNamespace(cluster.Namespace, cluster.Name), wanted.source.String(), d.Clock.Now()
	if wanted.source == (copySource{}) {
		item = itemOf(bundle)
	}
	small := d.sizes.smallOf(cluster.Namespace).bytes(now, func() int { return d.countSmallDeployments(cluster.Namespace) })
	if sizes.reserve(namespace, item, wanted.size, counted, limit-small, now) {
		return nil
	}
	if counted == 0 {
		size, err := stored()
		if err != nil {
			return err
		}
		if size > 0 && toCount(wanted.size, size) <= size {
			sizes.reserve(namespace, item, wanted.size, counted, math.MaxInt64, now)
			return nil
		}
	}
	return &storageError{bundle, wanted, limit}
}

// reserveDeploymentStorage counts a BundleDeployment that the hub is about to write in place of an existing one, if any.
func (d *Deployer) reserveDeploymentStorage(ctx context.Context, cluster *fleet.Cluster, size int64, existing, wanted *fleet.BundleDeployment) error {
	if existing == nil && size == 0 {
		return d.reserveSmallDeployment(cluster, wanted)
	}
	return d.reserveStorage(cluster, bundleOf(wanted), storageExcess{size: size}, countedSize(existing), func() (int64, error) {
		switch {
		case existing == nil:
			return 0, nil
		case isAsWanted(existing, wanted): // it is not written
			return size, nil
		}
		return d.readSize(ctx, existing)
	})
}

// reserveSmallDeployment counts a small BundleDeployment that the hub is about to create: a user could otherwise have the hub make one for each of
// thousands of Bundles and of Clusters. That of the agent does not count: a Cluster has one.
func (d *Deployer) reserveSmallDeployment(cluster *fleet.Cluster, wanted *fleet.BundleDeployment) error {
	if wanted.Name == registration.AgentBundleName(cluster.Name) || d.written.IsExpected(keyOf(wanted).String()) { // it is created already
		return nil
	}
	rest := d.Config.Get().Bundles.WorkspaceLimit()
	if sizes := d.sizes.find(cluster.Namespace); sizes != nil {
		rest -= sizes.sum()
	}
	count := func() int { return d.countSmallDeployments(cluster.Namespace) }
	if d.sizes.smallOf(cluster.Namespace).reserve(rest, d.Clock.Now(), count) {
		return nil
	}
	return &storageError{bundle: bundleOf(wanted), limit: d.Config.Get().Bundles.WorkspaceLimit()}
}

func (d *Deployer) countSmallDeployments(workspace string) (number int) {
	clusters, _ := d.clusterCache.List(workspace, labels.Everything())
	for _, cluster := range clusters {
		deployments, _ := d.deploymentCache.List(registration.ClusterNamespace(cluster.Namespace, cluster.Name), labels.Everything())
		for _, deployment := range deployments {
			if isFromWorkspace(deployment, workspace) && countedSize(deployment) == 0 && deployment.Name != registration.AgentBundleName(cluster.Name) {
				number++
			}
		}
	}
	return number
}

// toCount returns the size to count for something of which so many bytes are counted. It does not count an update that needs little more, so that the
// limit does not refuse it. The next update is compared with the number that was counted, so that the sum of many updates is not larger.
func toCount(size, counted int64) int64 {
	if size > counted && size <= counted+min(counted, freeSize) {
		return counted
	}
	return size
}

// recountStorage corrects the sizes of a Cluster, at the beginning of a pass: something was deleted, or the pass before has not written all that it had
// reserved. It returns the time after which to do that again, 0 for the next pass.
func (d *Deployer) recountStorage(cluster *fleet.Cluster, deployments []*fleet.BundleDeployment) (recheck time.Duration) {
	if sizes := d.sizes.find(cluster.Namespace); sizes != nil {
		namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
		if _, stays := sizes.set(namespace, d.storedIn(cluster, deployments), d.Clock.Now().Add(-expectations.Timeout)); stays {
			return expectations.Timeout
		}
	}
	return 0
}

// itemOf names the BundleDeployment of a Bundle among the stored items of a Cluster. Those of copies are named by their source.
func itemOf(bundle key) string { return "Bundle " + bundle.String() }

// countStored counts what is stored for a workspace according to the caches. It does not count the BundleDeployments and copies of Fleet's hub, which
// have no size; the pass over their Cluster does.
func (d *Deployer) countStored(workspace string, sizes *workspaceSizes) {
	clusters, _ := d.clusterCache.List(workspace, labels.Everything())
	for _, cluster := range clusters {
		namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
		deployments, _ := d.deploymentCache.List(namespace, labels.Everything())
		sizes.set(namespace, d.storedIn(cluster, deployments), d.Clock.Now())
	}
}

// storedIn returns the sizes of the BundleDeployments of a Cluster, and of the copies that they name, that count.
func (d *Deployer) storedIn(cluster *fleet.Cluster, deployments []*fleet.BundleDeployment) map[string]int64 {
	namespace := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	sizes := map[string]int64{}
	note := func(item string, size int64) {
		if size > 0 {
			sizes[item] = size
		}
	}
	for _, deployment := range deployments {
		if !isFromWorkspace(deployment, cluster.Namespace) {
			continue
		}
		note(itemOf(bundleOf(deployment)), countedSize(deployment))
		for _, s := range sourcesOf(deployment) {
			if known := d.copies.find(s.kind, key{Namespace: namespace, Name: s.name}); known != nil {
				version, _ := parseCopyVersion(known)
				note(s.String(), version.size)
			}
		}
	}
	return sizes
}

// countedSize returns the size of a BundleDeployment with its Helm values, 0 if it does not count.
func countedSize(deployment *fleet.BundleDeployment) int64 {
	if deployment == nil {
		return 0
	}
	size, _ := strconv.ParseInt(deployment.Labels[fleet.SizeLabel], 10, 64)
	return max(0, size)
}

// readSize returns the size of a BundleDeployment without a size, as the API server has it, with its Helm values.
func (d *Deployer) readSize(ctx context.Context, deployment *fleet.BundleDeployment) (int64, error) {
	live, err := d.FleetClient.BundleDeployments(deployment.Namespace).Get(ctx, deployment.Name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("reading BundleDeployment %s for its size: %w", keyOf(deployment), err)
	}
	size := 0
	for _, f := range userFields {
		_, n := digestOf(f.value(&live.Spec), nil)
		size += n
	}
	if live.Spec.ValuesHash == "" {
		return int64(size), nil
	}
	values, err := d.values.read(ctx, keyOf(deployment))
	return int64(size + len(values.current) + len(values.staged)), err
}

// wantedSize returns the size to count for a BundleDeployment with its Helm values: the options and the values are in it twice. While it is
// postponed, one of the two is what it has now.
func (p *plan) wantedSize(v variant, isPostponed bool, existing *fleet.BundleDeployment) int64 {
	size, counted := int64(p.commonSize+2*v.size), countedSize(existing)
	if size <= freeSize {
		size = 0
	}
	if isPostponed {
		size = max(size, counted)
	}
	return toCount(size, counted)
}

// noteStorageLimits remembers, by Bundle, what the storage limit keeps from a Cluster. The statuses of the Bundles report it.
func (d *Deployer) noteStorageLimits(cluster key, now map[key]storageExcess) {
	d.mu.Lock()
	before := d.overStorage[cluster]
	if d.overStorage[cluster] = now; len(now) == 0 {
		delete(d.overStorage, cluster)
	}
	d.mu.Unlock()
	for bundle := range before {
		if excess, limited := now[bundle]; !limited || excess != before[bundle] {
			d.bundleChanged(bundle)
		}
	}
	for bundle := range now {
		if _, known := before[bundle]; !known {
			d.bundleChanged(bundle)
		}
	}
}

// storageLimits returns, by Cluster, what the limit keeps from the Clusters that a Bundle targets. A quarantined Cluster gets nothing anyway.
func (d *Deployer) storageLimits(bundle key, matches []match) map[key]*storageError {
	limit, found := d.Config.Get().Bundles.WorkspaceLimit(), map[key]*storageError{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range matches {
		if e, limited := d.overStorage[keyOf(m.cluster)][bundle]; limited && !m.cluster.Spec.Quarantined {
			found[keyOf(m.cluster)] = &storageError{bundle, e, limit}
		}
	}
	return found
}

// storageProblem returns the problem of a Bundle that the storage limit keeps from one of its Clusters, or nil.
func storageProblem(limits map[key]*storageError) *problem {
	message := ""
	for _, e := range limits {
		if text := e.Error(); message == "" || text < message { // the same in each pass
			message = text
		}
	}
	if message == "" {
		return nil
	}
	return &problem{fleet.ReasonWorkspaceLimitReached, message}
}
