package bundle

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// contentGrace is the time for which a Content is kept that no BundleDeployment names. It is longer than a pass over a Cluster may take,
// so that no Content is deleted between the time it is found and the time a BundleDeployment names it.
const contentGrace = 40 * time.Second

// contents creates Contents and deletes those that no BundleDeployment needs. Its cache has their metadata.
type contents struct {
	*app.Context
	deployments fleetcontrollers.BundleDeploymentCache
	grace       time.Duration

	creating singleflight.Group
	made     *expectations.Expectations // Contents that were created and are not in the cache yet
	queue    workqueue.TypedDelayingInterface[string]
	running  sync.WaitGroup

	mu sync.Mutex
	// needed has the time at which a pass last needed a Content.
	needed map[string]time.Time
	// sizes has the bytes of Contents for which size was called.
	sizes map[string]int64
}

func newContents(c *app.Context, deployments fleetcontrollers.BundleDeploymentCache) *contents {
	grace := c.ContentGrace
	if grace == 0 {
		grace = contentGrace
	}
	return &contents{
		Context:     c,
		deployments: deployments,
		grace:       grace,
		made:        expectations.New(c.Clock),
		queue:       workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: c.Clock}),
		needed:      map[string]time.Time{},
		sizes:       map[string]int64{},
	}
}

// ensure creates the Content with the resources of a Bundle if it does not exist. Many Clusters may need it at the same time, and one
// request creates it for all. check may refuse that, unless a BundleDeployment has the Content already.
func (c *contents) ensure(ctx context.Context, name string, b *fleet.Bundle, check func() error) error {
	c.mu.Lock()
	c.needed[name] = c.Clock.Now()
	c.mu.Unlock()
	if known := c.find(name); known != nil && known.DeletionTimestamp == nil || c.made.IsExpected(name) {
		return nil
	}
	err := error(nil)
	if len(c.dependentsOf(name)) == 0 {
		err = check()
	}
	if err == nil {
		err = c.create(ctx, name, b)
	}
	if err != nil { // no event of a Content would drop the entry
		c.mu.Lock()
		delete(c.needed, name)
		c.mu.Unlock()
	}
	return err
}

func (c *contents) create(ctx context.Context, name string, b *fleet.Bundle) error {
	_, err, _ := c.creating.Do(name, func() (any, error) {
		if c.made.IsExpected(name) {
			return nil, nil
		}
		encoded, err := c.encode(ctx, name, b)
		if err != nil {
			return nil, err
		}
		encoded.Labels = map[string]string{fleet.ManagedLabel: fleet.ManagedValue}
		if _, err = c.FleetClient.Contents().Create(ctx, encoded, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, errors.New(content.WithoutNames(fmt.Sprintf("creating Content %s: %v", name, err))) // a status shows it
		}
		c.made.Expect(name)
		return nil, nil
	})
	return err
}

// encode packs the resources of a Bundle into the Content of this name. It reads the Bundle if the cache has only the digest of the
// resources.
func (c *contents) encode(ctx context.Context, name string, b *fleet.Bundle) (*fleet.Content, error) {
	resources := b.Spec.Resources
	if b.Spec.ResourcesDigest != "" {
		live, err := c.FleetClient.Bundles(b.Namespace).Get(ctx, b.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading the resources of Bundle %s/%s: %w", b.Namespace, b.Name, err)
		}
		resources = live.Spec.Resources
	}
	encoded, err := content.Encode(resources)
	if err == nil && encoded.Name != name { // the event of the change enqueues the Clusters
		return nil, fmt.Errorf("the resources of Bundle %s/%s were changed meanwhile; retrying", b.Namespace, b.Name)
	}
	return encoded, err
}

// collectAtOnce is how many Contents one request for BundleDeployments checks. Their names, of 63 characters, are in its URL.
const collectAtOnce = 100

// start collects Contents in the background until ctx ends.
func (c *contents) start(ctx context.Context) {
	context.AfterFunc(ctx, c.queue.ShutDown)
	c.running.Go(func() {
		for {
			names := c.next()
			if len(names) == 0 {
				return
			}
			again, err := c.collect(ctx, names...)
			if err != nil {
				logrus.Warnf("%v; retrying in %s", err, c.grace)
			}
			for _, name := range names {
				c.queue.Done(name)
				if after, found := again[name]; found {
					c.queue.AddAfter(name, after)
				}
			}
		}
	})
}

// next waits for the next Contents to collect; there are none if the queue was shut down. One goroutine at a time calls it.
func (c *contents) next() (names []string) {
	for len(names) == 0 || len(names) < collectAtOnce && c.queue.Len() > 0 {
		name, stopped := c.queue.Get()
		if stopped {
			return nil
		}
		names = append(names, name)
	}
	return names
}

// checkLater enqueues a Content for collect after the grace period. It checks nothing itself: it is called for each BundleDeployment that
// changes, and ten thousand may need one Content.
func (c *contents) checkLater(name string) { c.queue.AddAfter(name, c.grace) }

// digestName matches the names of Contents, which are digests.
var digestName = regexp.MustCompile(`^s-[0-9a-f]{61}$`)

// collect deletes those of the Contents that no BundleDeployment needs. It returns the times after which to check others again.
// The cache may lag behind, so the API server decides; if it does not answer, nothing is deleted. Their label shows which BundleDeployments need
// a Content as their newest one; only the cache shows whether an earlier one is still deployed.
func (c *contents) collect(ctx context.Context, names ...string) (again map[string]time.Duration, err error) {
	again = map[string]time.Duration{}
	var unneeded []*metav1.PartialObjectMetadata
	for _, name := range names {
		known := c.find(name)
		if known == nil || known.DeletionTimestamp != nil || len(c.dependentsOf(name)) > 0 {
			continue
		}
		// Fleet's controllers, whose work the hub continues, give Contents such names and no label.
		if known.Labels[fleet.ManagedLabel] != fleet.ManagedValue && !digestName.MatchString(name) {
			continue
		}
		c.mu.Lock()
		needed, wasNeeded := c.needed[name]
		c.mu.Unlock()
		if since := c.Clock.Since(needed); wasNeeded && since < c.grace {
			again[name] = c.grace - since
			continue
		}
		unneeded = append(unneeded, known)
		again[name] = c.grace // unless it is deleted
	}
	if len(unneeded) == 0 {
		return again, nil
	}

	needed, err := c.neededOnServer(ctx, unneeded)
	if err != nil {
		return again, err
	}
	var errs []error
	for _, known := range unneeded {
		if needed.Has(known.Name) || len(c.dependentsOf(known.Name)) > 0 { // perhaps since the API server was asked
			continue
		}
		err := c.FleetClient.Contents().Delete(ctx, known.Name, writes.IfUID(known))
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting Content %s, which no BundleDeployment needs: %w", known.Name, err))
			continue
		}
		delete(again, known.Name)
		c.Metrics.OrphansCollected.WithLabelValues("Content").Inc()
	}
	return again, errors.Join(errs...)
}

// neededOnServer asks the API server which of the Contents BundleDeployments need. Those that need one are few, because the cache shows none: if
// they are many nevertheless, all Contents count as needed.
func (c *contents) neededOnServer(ctx context.Context, unneeded []*metav1.PartialObjectMetadata) (sets.Set[string], error) {
	names := sets.New[string]()
	for _, known := range unneeded {
		if len(validation.IsValidLabelValue(known.Name)) == 0 { // others are not in a label, and the API server would refuse the selector
			names.Insert(known.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	selector := fmt.Sprintf("%s in (%s)", fleet.ContentNameLabel, strings.Join(sets.List(names), ","))
	list, err := c.FleetClient.BundleDeployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: collectAtOnce})
	if err != nil {
		return nil, fmt.Errorf("looking for BundleDeployments that need %d Contents, such as %s: %w", len(unneeded), unneeded[0].Name, err)
	}
	if list.Continue != "" {
		return names, nil
	}
	needed := sets.New[string]()
	for i := range list.Items {
		needed.Insert(list.Items[i].Labels[fleet.ContentNameLabel])
	}
	return needed, nil
}

// find returns the metadata of a Content, or nil if there is none.
func (c *contents) find(name string) *metav1.PartialObjectMetadata {
	return index.Metadata(c.ContentMetadata, name)
}

// dependentsOf returns the BundleDeployments that need a Content.
func (c *contents) dependentsOf(name string) []*fleet.BundleDeployment {
	dependents, _ := c.deployments.GetByIndex(byContent, name)
	return dependents
}

// forget drops the state of a deleted Content.
func (c *contents) forget(name string) {
	c.made.Observed(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.needed, name)
	delete(c.sizes, name)
}

// size returns what a Content takes in the database, 0 if it does not exist. The cache has only the metadata, so it reads the Content once.
func (c *contents) size(ctx context.Context, name string) (int64, error) {
	if c.find(name) == nil {
		return 0, nil
	}
	c.mu.Lock()
	size, known := c.sizes[name]
	c.mu.Unlock()
	if known {
		return size, nil
	}
	live, err := c.FleetClient.Contents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, errors.New(content.WithoutNames(fmt.Sprintf("reading Content %s for its size: %v", name, err)))
	}
	size = int64(base64.StdEncoding.EncodedLen(len(live.Content)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.find(name) != nil { // forget was not called meanwhile
		c.sizes[name] = size
	}
	return size, nil
}

// earlierContents is what the Contents of earlier versions of Bundles take that a workspace still needs.
type earlierContents struct {
	mu        sync.Mutex
	bytes     int64
	countedAt time.Time
}

// checkEarlierContents returns an error if the workspace of a Bundle has too many earlier versions to get a new one. A paused or quarantined Cluster keeps
// the version that it has, so a user can have the hub store another one for each Cluster, of which no quota counts anything.
func (d *Deployer) checkEarlierContents(ctx context.Context, b *fleet.Bundle, p *plan) error {
	if p.isAgent { // it is for one Cluster
		return nil
	}
	limit, now := d.Config.Get().Bundles.WorkspaceLimit(), d.Clock.Now()
	earlier := &d.sizes.countsOf(b.Namespace).earlier
	earlier.mu.Lock()
	defer earlier.mu.Unlock()
	if earlier.countedAt.IsZero() || now.Sub(earlier.countedAt) >= recountInterval {
		bytes, err := d.countEarlierContents(ctx, b.Namespace, limit/4)
		if err != nil {
			return err
		}
		earlier.bytes, earlier.countedAt = bytes, now
	}
	if earlier.bytes > limit/4 {
		return &storageError{keyOf(b), storageExcess{earlier: true}, limit}
	}
	return nil
}

// countEarlierContents returns what the Contents take that BundleDeployments of a workspace need and their Bundles no longer have, except for one of each
// Bundle: every rollout has two versions. It stops when that is more than the given number.
func (d *Deployer) countEarlierContents(ctx context.Context, workspace string, enough int64) (bytes int64, err error) {
	current, earlier := map[key]string{}, map[key]map[string]bool{} // by Bundle
	exists := map[key]bool{}
	clusters, _ := d.clusterCache.List(workspace, labels.Everything())
	for _, cluster := range clusters {
		deployments, _ := d.deploymentCache.List(registration.ClusterNamespace(cluster.Namespace, cluster.Name), labels.Everything())
		for _, deployment := range deployments {
			bundle := bundleOf(deployment)
			if !isFromWorkspace(deployment, workspace) || isOfAgent(deployment) {
				continue
			}
			if earlier[bundle] == nil {
				earlier[bundle] = map[string]bool{}
				if b, err := d.bundleCache.Get(bundle.Namespace, bundle.Name); err == nil {
					current[bundle], exists[bundle] = d.plans.of(ctx, b).content, true
				}
			}
			for _, name := range contentsOf(deployment) {
				if name != current[bundle] {
					earlier[bundle][name] = true
				}
			}
		}
	}
	counted := map[string]bool{}
	for bundle, names := range earlier {
		sorted := slices.Sorted(maps.Keys(names))
		if exists[bundle] && len(sorted) > 0 {
			sorted = sorted[1:]
		}
		for _, name := range sorted {
			if counted[name] {
				continue
			}
			counted[name] = true
			size, err := d.contents.size(ctx, name)
			if err != nil {
				return 0, err
			}
			if bytes += size; bytes > enough {
				return bytes, nil
			}
		}
	}
	return bytes, nil
}
