// Package orphans removes what the hub has made for something that is gone: a Cluster whose finalizer somebody took away, or
// a request that was deleted while no hub was running. It walks over the caches now and then, and looks at once after the
// deletion of a Cluster. Nothing is removed because a cache does not have its owner: the API server has to say that it does
// not exist.
package orphans

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// firstWalk leaves a hub that has just started to its other controllers, who take back most orphans by themselves.
	firstWalk = 10 * time.Second
	// walkEvery is how often all is looked at.
	walkEvery = 30 * time.Minute
	// walkAgain is how soon after a walk that left something.
	walkAgain = time.Minute
	// afterDeletion is how long after the deletion of a Cluster what was made for it is looked for: most of it is on its way.
	afterDeletion = 10 * time.Second
	// batch is how many objects are looked at in one go, and breath the pause after it.
	batch  = 500
	breath = 20 * time.Millisecond
	// jitter spreads the walks, so that they do not meet other periodic work for ever.
	jitter = 0.2
)

// Collector removes orphans.
type Collector struct {
	*app.Context
	kinds   []kind
	owners  map[string]look
	tasks   workqueue.TypedDelayingInterface[types.NamespacedName]
	running sync.WaitGroup
}

// walk is the task of looking at everything; every other is the name of a Cluster that is gone.
var walk types.NamespacedName

// Register sets up the collector. It watches the deletion of Clusters. Start begins the work, when the caches are filled;
// Wait waits for its end, with ctx.
func Register(ctx context.Context, c *app.Context) *Collector {
	o := newCollector(c, kindsOf(c), ownersOf(c))
	context.AfterFunc(ctx, o.tasks.ShutDown)
	// The error is of an informer that was stopped already; then there is nothing to see.
	_, _ = c.Fleet.Cluster().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: o.clusterGone})
	return o
}

func newCollector(c *app.Context, kinds []kind, owners map[string]look) *Collector {
	return &Collector{
		Context: c, kinds: kinds, owners: owners,
		tasks: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: c.Clock}),
	}
}

func (c *Collector) clusterGone(object any) {
	key, err := cache.DeletionHandlingObjectToName(object)
	if err == nil {
		c.tasks.AddAfter(types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, afterDeletion)
	}
}

// Start begins, until ctx ends.
func (c *Collector) Start(ctx context.Context) {
	c.running.Go(func() { c.run(ctx) })
	c.tasks.AddAfter(walk, firstWalk)
}

// Wait returns when the work has ended with its context.
func (c *Collector) Wait() { c.running.Wait() }

func (c *Collector) run(ctx context.Context) {
	for {
		task, shutDown := c.tasks.Get()
		if shutDown || ctx.Err() != nil {
			return
		}
		c.do(ctx, task)
		c.tasks.Done(task)
	}
}

func (c *Collector) do(ctx context.Context, task types.NamespacedName) {
	if task != walk {
		c.afterCluster(ctx, task)
		return
	}
	next := walkEvery
	if left := c.walk(ctx); left > 0 {
		logrus.Warnf("%d orphans could not be removed; they are tried again", left)
		next = walkAgain
	}
	c.tasks.AddAfter(walk, wait.Jitter(next, jitter))
}

// afterCluster looks for the two objects that nothing but the Cluster's finalizer would remove.
func (c *Collector) afterCluster(ctx context.Context, cluster types.NamespacedName) {
	names := map[string]types.NamespacedName{
		namespaces: {Name: registration.ClusterNamespace(cluster.Namespace, cluster.Name)},
		bundles:    {Namespace: cluster.Namespace, Name: registration.AgentBundleName(cluster.Name)},
	}
	for _, k := range c.kinds {
		name, asked := names[k.name]
		if !asked {
			continue
		}
		if m, found := k.one(name); found {
			c.settle(ctx, k, m)
		}
	}
}
