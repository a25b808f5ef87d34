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

const (
	// unlabelledSize is the size of options and Helm values up to which a BundleDeployment has no SizeLabel. Most are not larger.
	unlabelledSize = 1 << 10
	// maxSmall is the size up to which a BundleDeployment is small. A large workspace has many thousands of small ones. They are counted together: see
	// smallCount.
	maxSmall = 16 << 10
	// deploymentOverhead is what a small BundleDeployment takes beside its options and Helm values.
	deploymentOverhead = 2 << 10
	// freeBytes is what the small BundleDeployments of a workspace take before they count: 100,000 without a SizeLabel.
	freeBytes = 100_000 * (deploymentOverhead + unlabelledSize)
	// recountInterval is the interval at which small BundleDeployments are counted again, at most, and earlier Contents.
	recountInterval = 10 * time.Second
)

// storedBytes has the workspaces in which the hub has stored a large BundleDeployment or a copy. A Bundle that a user writes once is stored for each
// Cluster, and the database of the API server serves all workspaces.
type storedBytes struct {
	mu         sync.Mutex
	workspaces map[string]*workspaceSizes
	counts     map[string]*workspaceCounts
}

// workspaceCounts are what is counted for a workspace as a whole.
type workspaceCounts struct {
	small    smallCount
	earlier  earlierContents
	clusters int // at least so many of its Clusters are left; at 0 they are counted again; storedBytes guards it
}

// smallCount is what the small BundleDeployments of a workspace take. It is counted from the cache when it matters. Between, it only grows with what
// the hub writes, so that a pass costs nothing while they take less than freeBytes.
type smallCount struct {
	mu        sync.Mutex
	bytes     int64
	countedAt time.Time
}

// countsOf returns the counts of a workspace, which may not be counted yet.
func (s *storedBytes) countsOf(workspace string) *workspaceCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[workspace] == nil {
		put(&s.counts, workspace, &workspaceCounts{})
	}
	return s.counts[workspace]
}

// smallOf returns what the small BundleDeployments of a workspace take.
func (s *storedBytes) smallOf(workspace string) *smallCount { return &s.countsOf(workspace).small }

// reserve counts bytes that are about to be written. It returns false if what is not free would take more than the rest of the limit. It
// calls rest only if the free bytes are exceeded. count counts those in the cache, which is exact enough: what the cache does not show yet is written only once.
func (c *smallCount) reserve(size int64, rest func() int64, now time.Time, count func() int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(now, count)
	if excess := c.bytes + size - freeBytes; excess > 0 && excess > rest() {
		return false
	}
	c.bytes += size
	return true
}

// excess returns what is not free.
func (c *smallCount) excess(now time.Time, count func() int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(now, count)
	return max(0, c.bytes-freeBytes)
}

// refresh counts them again, if that matters. The caller has locked mu.
func (c *smallCount) refresh(now time.Time, count func() int64) {
	if c.countedAt.IsZero() || c.bytes >= freeBytes && now.Sub(c.countedAt) >= recountInterval {
		c.bytes, c.countedAt = count(), now
	}
}

// smallBytes returns what a BundleDeployment with this size takes, if it is small.
func smallBytes(size int64) int64 { return deploymentOverhead + max(size, unlabelledSize) }

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

// forget drops the sizes of a deleted Cluster, the workspace if nothing is stored there any more, and its counts if it has no Cluster any more. It calls
// clusters, which counts those in the cache, only when all that there were may be deleted.
func (s *storedBytes) forget(workspace, namespace string, clusters func() int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if counts := s.counts[workspace]; counts != nil {
		if counts.clusters--; counts.clusters <= 0 {
			counts.clusters = clusters()
		}
		if counts.clusters == 0 {
			delete(s.counts, workspace)
		}
	}
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

// fits reports whether reserve would count an item that does not exist yet.
func (w *workspaceSizes) fits(namespace, item string, size, limit int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	grown := size - w.byNamespace[namespace][item].bytes
	return grown <= 0 || w.total+grown <= limit
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
// It is 0 for a BundleDeployment without a SizeLabel.
type storageExcess struct {
	size    int64
	source  copySource
	atLeast bool // the source was not read
	earlier bool // the limit refuses the Content of another version instead
}

// storageError reports that the hub does not store what a Bundle asks for.
type storageError struct {
	bundle key
	storageExcess
	limit int64
}

// Error names the Bundle, the size, the limit and what to do.
func (e *storageError) Error() string {
	if e.earlier {
		return fmt.Sprintf("the new resources of Bundle %s are not deployed: Clusters of this workspace still have earlier versions of its Bundles, which take "+
			"more than a quarter of %d MiB; end the pause or the quarantine of these Clusters, or raise bundles.workspaceLimitMiB of the hub", e.bundle, e.limit>>20)
	}
	if e.size == 0 {
		return fmt.Sprintf("no BundleDeployment is created for Bundle %s: the small ones of this workspace take more than %d MiB, and the rest of them, "+
			"the large ones and the copies would take more than %d MiB; delete Bundles, select fewer Clusters, or raise "+
			"bundles.workspaceLimitMiB of the hub", e.bundle, freeBytes>>20, e.limit>>20)
	}
	what := fmt.Sprintf("what Bundle %s has in options and Helm values", e.bundle)
	if e.source != (copySource{}) {
		what = fmt.Sprintf("%s, which Bundle %s names in %s,", e.source, e.bundle, e.source.field())
	}
	takes := "takes"
	if e.atLeast {
		takes = "takes at least"
	}
	return fmt.Sprintf("%s %s %d kB for each Cluster, and the BundleDeployments and copies of this workspace would take more than "+
		"%d MiB; make it smaller, select fewer Clusters, or raise bundles.workspaceLimitMiB of the hub", what, takes, (e.size+1023)>>10, e.limit>>20)
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
// wanted becomes the excess in the error if it is refused.
func (d *Deployer) reserveStorage(cluster *fleet.Cluster, bundle key, wanted storageExcess, counted int64, stored func() (int64, error)) error {
	if wanted.size <= counted {
		return nil
	}
	sizes, limit := d.countedSizes(cluster.Namespace), d.Config.Get().Bundles.WorkspaceLimit()
	namespace, item, now := registration.ClusterNamespace(cluster.Namespace, cluster.Name), wanted.source.String(), d.Clock.Now()
	if wanted.source == (copySource{}) {
		item = itemOf(bundle)
	}
	if sizes.reserve(namespace, item, wanted.size, counted, limit-d.smallExcess(cluster.Namespace), now) {
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

// countedSizes returns the sizes of a workspace, which it counts from the caches the first time.
func (d *Deployer) countedSizes(workspace string) *workspaceSizes {
	sizes := d.sizes.of(workspace)
	sizes.counted.Do(func() { d.countStored(workspace, sizes) })
	return sizes
}

// smallExcess returns what the small BundleDeployments of a workspace take beyond freeBytes.
func (d *Deployer) smallExcess(workspace string) int64 {
	return d.sizes.smallOf(workspace).excess(d.Clock.Now(), func() int64 { return d.countSmallDeployments(workspace) })
}

// reserveDeploymentStorage counts a BundleDeployment that the hub is about to write in place of an existing one, if any.
func (d *Deployer) reserveDeploymentStorage(ctx context.Context, cluster *fleet.Cluster, size int64, existing, wanted *fleet.BundleDeployment) error {
	stored := func() (int64, error) { // of what has no size yet
		switch {
		case existing == nil || countedSize(existing) > 0:
			return 0, nil
		case isAsWanted(existing, wanted): // it is not written
			return size, nil
		}
		return d.readSize(ctx, existing)
	}
	counted := countedSize(existing)
	if size <= maxSmall {
		return d.reserveSmallDeployment(cluster, size, existing, wanted, stored)
	}
	if counted <= maxSmall { // it is not among the large ones yet
		counted = 0
	}
	return d.reserveStorage(cluster, bundleOf(wanted), storageExcess{size: size}, counted, stored)
}

// reserveSmallDeployment counts a small BundleDeployment that the hub is about to write: a user could otherwise have the hub make one for each of
// thousands of Bundles and of Clusters. That of the agent does not count: a Cluster has one.
func (d *Deployer) reserveSmallDeployment(
	cluster *fleet.Cluster, size int64, existing, wanted *fleet.BundleDeployment, stored func() (int64, error),
) error {
	if wanted.Name == registration.AgentBundleName(cluster.Name) {
		return nil
	}
	counted, grown := countedSize(existing), smallBytes(size)
	if existing == nil {
		if d.written.IsExpected(keyOf(wanted).String()) { // it is created already
			return nil
		}
	} else {
		if counted <= maxSmall {
			grown -= smallBytes(counted)
		}
		if grown <= 0 || d.mustNotWrite(existing) || isAsWanted(existing, wanted) { // as in most passes: nothing larger is written
			return nil
		}
	}

	limit, now := d.Config.Get().Bundles.WorkspaceLimit(), d.Clock.Now()
	small, count := d.sizes.smallOf(cluster.Namespace), func() int64 { return d.countSmallDeployments(cluster.Namespace) }
	noLimit := func() int64 { return math.MaxInt64 }
	rest := func() int64 { return limit - d.countedSizes(cluster.Namespace).sum() }
	if counted > maxSmall { // it was large
		rest = noLimit
	}
	if small.reserve(grown, rest, now, count) {
		return nil
	}
	known, err := stored()
	if err != nil {
		return err
	}
	if known > 0 && toCount(size, known) <= known {
		small.reserve(grown, noLimit, now, count)
		return nil
	}
	return &storageError{bundleOf(wanted), storageExcess{size: size}, limit}
}

// countSmallDeployments returns what the small BundleDeployments of a workspace take according to the cache.
func (d *Deployer) countSmallDeployments(workspace string) (bytes int64) {
	clusters, _ := d.clusterCache.List(workspace, labels.Everything())
	for _, cluster := range clusters {
		deployments, _ := d.deploymentCache.List(registration.ClusterNamespace(cluster.Namespace, cluster.Name), labels.Everything())
		for _, deployment := range deployments {
			size := countedSize(deployment)
			if isFromWorkspace(deployment, workspace) && size <= maxSmall && deployment.Name != registration.AgentBundleName(cluster.Name) {
				bytes += smallBytes(size)
			}
		}
	}
	return bytes
}

// toCount returns the size to count for something of which so many bytes are counted. It does not count an update that needs little more, so that the
// limit does not refuse it: a quarter, but 1 KiB at least and 16 KiB at most. The next update is compared with the number that was counted, so that the
// sum of many updates is not larger.
func toCount(size, counted int64) int64 {
	if counted > 0 && size > counted && size <= counted+min(max(counted/4, 1<<10), 16<<10) {
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
		if size := countedSize(deployment); size > maxSmall {
			note(itemOf(bundleOf(deployment)), size)
		}
		for _, s := range sourcesOf(deployment) {
			if known := d.copies.find(s.kind, key{Namespace: namespace, Name: s.name}); known != nil {
				note(s.String(), countedCopySize(known))
			}
		}
	}
	return sizes
}

// countedSize returns the size of the options and Helm values of a BundleDeployment, 0 if it has no SizeLabel.
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
	if size <= unlabelledSize {
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
