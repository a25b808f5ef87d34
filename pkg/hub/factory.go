package hub

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	lassocache "github.com/rancher/lasso/pkg/cache"
	"github.com/rancher/lasso/pkg/client"
	"github.com/rancher/lasso/pkg/controller"
	"github.com/rancher/lasso/pkg/metrics"
	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	retryFirst = 5 * time.Millisecond
	retryMax   = 30 * time.Second
	// retryDeleted is the time after which lasso handles an object again whose last finalizer it has seen removed, but that the
	// cache still contains.
	retryDeleted = 10 * time.Second
)

// fairFactory creates the controllers of the hub's own caches. They have lasso's clients, caches and handlers, and work queues in which
// namespaces take turns: lasso's own controllers have one order for all, and no option to replace it.
type fairFactory struct {
	caches lassocache.SharedCacheFactory

	mu          sync.Mutex
	controllers map[schema.GroupVersionResource]*fairController
	listeners   []*oneListener
}

func newFairFactory(caches lassocache.SharedCacheFactory) *fairFactory {
	return &fairFactory{caches: caches, controllers: map[schema.GroupVersionResource]*fairController{}}
}

// SharedCacheFactory returns the caches of the controllers.
func (f *fairFactory) SharedCacheFactory() lassocache.SharedCacheFactory { return f.caches }

// ForObject returns the controller of the kind of an object.
func (f *fairFactory) ForObject(object runtime.Object) (controller.SharedController, error) {
	kind, err := f.caches.SharedClientFactory().GVKForObject(object)
	if err != nil {
		return nil, err
	}
	return f.ForKind(kind)
}

// ForKind returns the controller of a kind.
func (f *fairFactory) ForKind(kind schema.GroupVersionKind) (controller.SharedController, error) {
	resource, namespaced, err := f.caches.SharedClientFactory().ResourceForGVK(kind)
	if err != nil {
		return nil, err
	}
	return f.ForResourceKind(resource, kind.Kind, namespaced), nil
}

// ForResource returns the controller of a resource.
func (f *fairFactory) ForResource(resource schema.GroupVersionResource, namespaced bool) controller.SharedController {
	kind, _ := f.caches.SharedClientFactory().GVKForResource(resource) // an unknown one has no cache either
	return f.ForResourceKind(resource, kind.Kind, namespaced)
}

// ForResourceKind returns the controller of a resource. It watches the resource only once its informer is used.
func (f *fairFactory) ForResourceKind(resource schema.GroupVersionResource, kind string, namespaced bool) controller.SharedController {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.controllers[resource] == nil {
		f.controllers[resource] = &fairController{
			name:    resource.GroupVersion().WithKind(kind).String(),
			client:  f.caches.SharedClientFactory().ForResourceKind(resource, kind, namespaced),
			handler: &controller.SharedHandler{ControllerName: resource.String()},
			informer: sync.OnceValue(func() *oneListener {
				informer, err := f.caches.ForResourceKind(resource, kind, namespaced)
				if err != nil { // the resource is not served, or its kind is in no scheme
					logrus.Errorf("Cannot watch %s: %v", resource, err)
					informer = cache.NewSharedIndexInformer(nil, nil, 0, cache.Indexers{}) // never started, because Informer returns no error
				}
				l := &oneListener{SharedIndexInformer: informer}
				f.mu.Lock()
				defer f.mu.Unlock()
				f.listeners = append(f.listeners, l)
				return l
			}),
		}
	}
	return f.controllers[resource]
}

// listen starts the listeners of all caches whose informers are used. Handlers that are added before share a listener.
func (f *fairFactory) listen() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.listeners {
		if err := l.listen(); err != nil {
			return err
		}
	}
	return nil
}

// Start fills the caches, and starts the controllers with registered handlers until ctx ends. workers is the maximum number of passes of one
// namespace and kind that run at the same time.
func (f *fairFactory) Start(ctx context.Context, workers int) error {
	if err := f.caches.Start(ctx); err != nil {
		return err
	}
	f.caches.WaitForCacheSync(ctx)
	if err := f.listen(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.controllers {
		if err := c.Start(ctx, workers); err != nil {
			return err
		}
	}
	return nil
}

type keyQueue = workqueue.TypedRateLimitingInterface[string]

// fairController calls the handlers of one kind.
type fairController struct {
	name     string
	client   *client.Client
	informer func() *oneListener
	handler  *controller.SharedHandler
	register sync.Once

	mu       sync.Mutex
	handling bool             // whether there is a handler
	early    []func(keyQueue) // what was enqueued before Start
	order    *fairQueue       // of queue
	queue    keyQueue         // nil before Start, because a queue has goroutines
	waiting  atomic.Int32     // workers without a key
}

// Client returns the client of the kind.
func (c *fairController) Client() *client.Client { return c.client }

// Informer returns the cache of the kind.
func (c *fairController) Informer() cache.SharedIndexInformer { return c.informer() }

// RegisterHandler adds a handler, until ctx ends. Call it before Start.
func (c *fairController) RegisterHandler(ctx context.Context, name string, handler controller.SharedControllerHandler) {
	c.handler.Register(ctx, name, handler)
	c.register.Do(func() {
		c.mu.Lock()
		c.handling = true
		c.mu.Unlock()
		_, _ = c.informer().AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only for an informer that was stopped
			AddFunc: c.enqueueObject,
			UpdateFunc: func(before, after any) {
				if before.(metav1.Object).GetResourceVersion() != after.(metav1.Object).GetResourceVersion() {
					c.enqueueObject(after)
				}
			},
			DeleteFunc: c.enqueueObject,
		})
	})
}

func (c *fairController) enqueueObject(object any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
		c.EnqueueKey(key)
	}
}

// EnqueueKey adds the object with this key to the queue.
func (c *fairController) EnqueueKey(key string) { c.add(func(q keyQueue) { q.Add(key) }) }

// Enqueue adds an object to the queue, with the delay of its earlier failures, and counts as another one.
func (c *fairController) Enqueue(namespace, name string) {
	key := cache.NewObjectName(namespace, name).String()
	c.add(func(q keyQueue) { q.AddRateLimited(key) })
}

// EnqueueAfter adds an object to the queue after a delay.
func (c *fairController) EnqueueAfter(namespace, name string, delay time.Duration) {
	key := cache.NewObjectName(namespace, name).String()
	c.add(func(q keyQueue) { q.AddAfter(key, delay) })
}

func (c *fairController) add(add func(keyQueue)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue == nil {
		c.early = append(c.early, add)
		return
	}
	add(c.queue)
}

// Start starts the queue and its workers, until ctx ends.
func (c *fairController) Start(ctx context.Context, workers int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.handling || c.queue != nil {
		return nil
	}
	c.handler.CtxID = metrics.ContextID(ctx)
	c.order = newFairQueue(2 * workers) // one namespace gets half of them
	c.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryMax),
		workqueue.TypedRateLimitingQueueConfig[string]{DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(
			workqueue.TypedDelayingQueueConfig[string]{Name: c.name, Queue: workqueue.NewTypedWithConfig(
				workqueue.TypedQueueConfig[string]{Name: c.name, Queue: c.order},
			)},
		)},
	)
	for _, add := range c.early {
		add(c.queue)
	}
	c.early = nil
	context.AfterFunc(ctx, c.queue.ShutDown)
	c.startWorker()
	return nil
}

func (c *fairController) startWorker() {
	c.waiting.Add(1)
	go c.work()
}

// work handles keys until the queue is shut down. One worker always waits for the next key; another one ends when it finds none, because the
// stacks of all that may be needed would take megabytes.
func (c *fairController) work() {
	for {
		key, stopped := c.queue.Get()
		waiting := c.waiting.Add(-1)
		if stopped {
			return
		}
		if waiting == 0 {
			c.startWorker()
		}
		c.handle(key)
		// The end of this pass may allow a key that has waited, and wakes no other worker.
		if c.order.Len() == 0 && c.waiting.Load() > 0 {
			return
		}
		c.waiting.Add(1)
	}
}

// handle calls the handlers for one object, which is nil if the cache does not contain it.
func (c *fairController) handle(key string) {
	defer c.queue.Done(key)
	defer c.order.done(key) // first, so that this worker finds the next key of the namespace
	stored, exists, _ := c.informer().GetStore().GetByKey(key)
	var object runtime.Object
	if exists {
		object = stored.(runtime.Object)
	}
	err := c.handler.OnChange(key, object)
	// Lasso's private handlerError and errorList have method Cause, its retryAfterError does not.
	switch _, isOfHandlers := err.(interface{ Cause() error }); {
	case err == nil:
		c.queue.Forget(key)
	case isOfHandlers:
		logrus.Debugf("error syncing '%s': %v, requeuing", key, err) // app.Handler has logged it as an error
		c.queue.AddRateLimited(key)
	default: // lasso's private retryAfterError for a deleted object, whose method Error panics
		c.queue.AddAfter(key, retryDeleted)
	}
}
