package bundle

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// contentGrace is how long a Content is kept that no BundleDeployment names. It is longer than a pass may take, so that
// none is deleted between being found and being named.
const contentGrace = 40 * time.Second

const contentKind = "Content"

// contents knows by metadata which Contents there are, makes those that are missing, and collects those that nobody needs.
type contents struct {
	*app.Context
	informer    cache.SharedIndexInformer
	client      fleetcontrollers.ContentClient
	deployments fleetcontrollers.BundleDeploymentController
	users       fleetcontrollers.BundleDeploymentCache
	grace       time.Duration

	making singleflight.Group
	made   *expectations.Expectations
	queue  workqueue.TypedDelayingInterface[string]
	done   sync.WaitGroup

	mu      sync.Mutex
	touched map[string]time.Time
}

func newContents(c *app.Context) *contents {
	grace := c.ContentGrace
	if grace == 0 {
		grace = contentGrace
	}
	return &contents{
		Context:     c,
		informer:    c.Contents,
		client:      c.Fleet.Content(),
		deployments: c.Fleet.BundleDeployment(),
		users:       c.Fleet.BundleDeployment().Cache(),
		grace:       grace,
		made:        expectations.New(c.Clock),
		queue:       workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: c.Clock}),
		touched:     map[string]time.Time{},
	}
}

// ensure makes the Content of these resources if it is missing. Many Clusters may need it at once.
func (c *contents) ensure(name string, resources []fleet.BundleResource) error {
	c.touch(name)
	if known := c.find(name); known != nil && known.DeletionTimestamp == nil || c.made.IsExpected(name) {
		return nil
	}
	_, err, _ := c.making.Do(name, func() (any, error) { return nil, c.create(resources) })
	return err
}

func (c *contents) create(resources []fleet.BundleResource) error {
	packed, err := content.Encode(resources)
	if err != nil || c.made.IsExpected(packed.Name) {
		return err
	}
	packed.Labels = map[string]string{fleet.ManagedLabel: fleet.ManagedValue}
	_, err = c.client.Create(packed)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating Content %s: %w", packed.Name, err)
	}
	c.made.Expect(packed.Name)
	return nil
}

func (c *contents) find(name string) *metav1.PartialObjectMetadata {
	object, exists, err := c.informer.GetStore().GetByKey(name)
	if err != nil || !exists {
		return nil
	}
	return object.(*metav1.PartialObjectMetadata)
}

func (c *contents) touch(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.touched[name] = c.Clock.Now()
}

// untouched is how long ago a Content was last asked for, at most the grace.
func (c *contents) untouched(name string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known := c.touched[name]
	if !known {
		return c.grace
	}
	return min(c.grace, c.Clock.Since(last))
}

func (c *contents) forget(name string) {
	c.made.Observed(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.touched, name)
}

func (c *contents) usedBy(name string) []*fleet.BundleDeployment {
	users, _ := c.users.GetByIndex(byContent, name)
	return users
}

// consider has a Content looked at that may not be needed any more. It does not look itself: it is called for each
// BundleDeployment that changes, and ten thousand may need one Content.
func (c *contents) consider(name string) { c.queue.AddAfter(name, c.grace) }

// fleetName is the form of the names of Contents, which are digests.
var fleetName = regexp.MustCompile(`^s-[0-9a-f]{61}$`)

// collectable says whether a Content is the hub's to collect: one it made, or one that by its name an earlier fleet
// controller made, whose work the hub goes on with. Others are none of its business.
func collectable(c *metav1.PartialObjectMetadata) bool {
	return c.Labels[fleet.ManagedLabel] == fleet.ManagedValue || fleetName.MatchString(c.Name)
}

// check deletes a Content that is not needed, and returns when to look again, if at all. The cache may lag behind, so the
// API server has the last word, and when it does not answer nothing is deleted.
func (c *contents) check(name string) (again time.Duration, err error) {
	known := c.find(name)
	if known == nil || known.DeletionTimestamp != nil || !collectable(known) || len(c.usedBy(name)) > 0 {
		return 0, nil
	}
	if left := c.grace - c.untouched(name); left > 0 {
		return left, nil
	}
	list, err := c.deployments.List(metav1.NamespaceAll, metav1.ListOptions{
		LabelSelector: fleet.ContentNameLabel + "=" + name, Limit: 1,
	})
	if err != nil {
		return c.grace, fmt.Errorf("looking for BundleDeployments that need Content %s: %w", name, err)
	}
	if len(list.Items) > 0 {
		return c.grace, nil
	}
	err = c.client.Delete(name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &known.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return c.grace, fmt.Errorf("deleting Content %s, which nobody needs: %w", name, err)
	}
	c.Metrics.OrphansCollected.WithLabelValues(contentKind).Inc()
	return 0, nil
}

// start collects Contents until ctx ends.
func (c *contents) start(ctx context.Context) {
	c.done.Go(c.collect)
	c.done.Go(func() {
		<-ctx.Done()
		c.queue.ShutDown()
	})
}

func (c *contents) collect() {
	for {
		name, stopped := c.queue.Get()
		if stopped {
			return
		}
		again, err := c.check(name)
		if err != nil {
			logrus.Warnf("%v; trying again in %s", err, again)
		}
		c.queue.Done(name)
		if again > 0 {
			c.queue.AddAfter(name, again)
		}
	}
}
