package deploy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

// deployer is one run.
type deployer struct {
	Config
	owner    release.Owner
	own      string // the BundleDeployment of the agent itself
	releases *release.Client
	bundles  cache.Store
	shelf    *shelf
	live     *live
	items    *items
	queue    workqueue.TypedDelayingInterface[string] // what to work on
	drifts   workqueue.TypedDelayingInterface[string] // what to compare
	end      context.CancelCauseFunc                  // of the run
}

// errGoodbye ends the workers because the hub said farewell.
var errGoodbye = errors.New("the hub says farewell")

// Run deploys until ctx ends, and then returns nil with nothing left running. It returns ErrFarewell when the hub said so
// and everything is gone, and the error of Config.Judge. A hub that is away changes nothing on the member.
func Run(ctx context.Context, c Config) error {
	d, inner, err := prepare(ctx, c)
	if err != nil {
		return err
	}
	err = d.run(inner)
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, errGoodbye):
		return d.leave(ctx)
	}
	return err
}

func prepare(parent context.Context, c Config) (*deployer, context.Context, error) {
	c = c.withDefaults()
	releases, err := release.New(c.Member)
	if err != nil {
		return nil, nil, err
	}
	objects, err := dynamic.NewForConfig(c.Member)
	if err != nil {
		return nil, nil, err
	}
	ctx, end := context.WithCancelCause(parent)
	d := &deployer{
		Config: c, releases: releases, items: newItems(), end: end,
		owner: release.Owner{Namespace: c.AgentNamespace, ClusterNamespace: c.ClusterNamespace, ClusterName: c.ClusterName},
		own:   registration.LabelValue(registration.AgentBundleName(c.ClusterName)),
	}
	d.queue, d.drifts = d.newQueue(), d.newQueue()
	d.shelf = newShelf(func(key string) { d.queue.Add(key) })
	d.live = newLive(ctx, objects, d.touched)
	return d, ctx, nil
}

func (d *deployer) newQueue() workqueue.TypedDelayingInterface[string] {
	return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: d.Clock})
}

func (d *deployer) log(key string) logrus.FieldLogger {
	return d.Log.WithField("bundleDeployment", key)
}

// heard passes on how a request to the hub ended, and ends the run when the hub refuses the credential for certain.
func (d *deployer) heard(err error) error {
	if verdict := d.Judge(err); verdict != nil {
		d.end(verdict)
	}
	return err
}

// touched is told that an object of a release changed.
func (d *deployer) touched(namespace, name string) {
	if key, known := d.items.at(namespace, name); known {
		d.queue.AddAfter(key, d.Timing.Settle)
		d.drifts.AddAfter(key, d.Timing.Settle)
	}
}

// run watches and works until ctx ends. The workers start when both sides are known completely: what is to be removed is
// what is on the member and not on the hub.
func (d *deployer) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer d.live.wait.Wait() // last: the workers begin what it waits for
	defer running.Wait()
	defer d.queue.ShutDown()
	defer d.drifts.ShutDown()
	defer d.end(nil)
	bundlesSynced := d.watchBundles(ctx, &running)
	revisionsSynced := d.watchRevisions(ctx, &running)
	if !cache.WaitForCacheSync(ctx.Done(), bundlesSynced, revisionsSynced) {
		return context.Cause(ctx)
	}
	if bd := d.bundle(d.own); asksToLeave(bd) {
		return errGoodbye
	}
	d.enqueueAll()
	for range d.Workers {
		running.Go(func() { work(ctx, d.queue, d.handle) })
	}
	for range d.DriftWorkers {
		running.Go(func() { work(ctx, d.drifts, d.compare) })
	}
	running.Go(func() { d.resync(ctx) })
	<-ctx.Done()
	return context.Cause(ctx)
}

func work(ctx context.Context, queue workqueue.TypedDelayingInterface[string], do func(context.Context, string)) {
	for {
		key, over := queue.Get()
		if over {
			return
		}
		if ctx.Err() == nil {
			do(ctx, key)
		}
		queue.Done(key)
	}
}

// enqueueAll looks at what is on either side.
func (d *deployer) enqueueAll() {
	for _, bd := range d.allBundles() {
		d.queue.Add(registration.LabelValue(bd.Name))
	}
	for _, key := range d.shelf.deployments() {
		d.queue.Add(key)
	}
}

// resync compares everything now and then, for the changes that no watch told of.
func (d *deployer) resync(ctx context.Context) {
	for {
		if !d.pause(ctx, wait.Jitter(d.Resync, jitter)) {
			return
		}
		for _, key := range d.items.keys() {
			it := d.items.get(key)
			it.mu.Lock()
			it.drift.again = true
			it.mu.Unlock()
			d.drifts.Add(key)
		}
		d.enqueueAll()
	}
}

func (d *deployer) watchBundles(ctx context.Context, running *sync.WaitGroup) (synced func() bool) {
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: d.bundleLists(),
		ObjectType:    &fleet.BundleDeployment{},
		Handler:       d.bundleHandler(),
		Transform:     withoutManagedFields,
	})
	d.bundles = store
	running.Go(func() { controller.RunWithContext(ctx) })
	return controller.HasSynced
}

func (d *deployer) bundleHandler() cache.ResourceEventHandler {
	tell := func(object any) {
		if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = tombstone.Obj
		}
		if bd, ok := object.(*fleet.BundleDeployment); ok {
			d.queue.Add(registration.LabelValue(bd.Name))
			for _, key := range d.items.waiting() {
				d.queue.Add(key)
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { d.dismissed(o); tell(o) },
		UpdateFunc: func(before, o any) { d.turnedBack(before, o); d.dismissed(o); tell(o) },
		DeleteFunc: tell,
	}
}

// dismissed ends the run when the hub says farewell, without waiting for a worker: all of them may be busy for long.
func (d *deployer) dismissed(object any) {
	if bd, ok := object.(*fleet.BundleDeployment); ok && registration.LabelValue(bd.Name) == d.own && asksToLeave(bd) {
		d.end(errGoodbye)
	}
}

// turnedBack forgets what was written to a hub that has been restored from a backup since: it counts as newer than all the hub
// has, and the status from the backup would stay for as long as nothing new is to be said.
func (d *deployer) turnedBack(before, after any) {
	older, isOlder := before.(*fleet.BundleDeployment)
	newer, isNewer := after.(*fleet.BundleDeployment)
	if !isOlder || !isNewer || number(newer.ResourceVersion) >= number(older.ResourceVersion) {
		return
	}
	it := d.items.get(registration.LabelValue(newer.Name))
	it.mu.Lock()
	defer it.mu.Unlock()
	it.written = written{}
}

var errNoList = errors.New("something answered that is no Kubernetes API server")

// listBundles refuses a list without a resourceVersion: every list of an API server has one, and what somebody on the way
// makes up must not look like a hub that wants nothing deployed.
func (d *deployer) listBundles(ctx context.Context, o metav1.ListOptions) (*fleet.BundleDeploymentList, error) {
	list, err := d.Hub.FleetV1alpha1().BundleDeployments(d.Namespace).List(ctx, o)
	if err == nil && list.ResourceVersion == "" {
		err = errNoList
	}
	return list, d.heard(err)
}

func (d *deployer) bundleLists() cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return d.listBundles(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := transport.Watch(ctx, o, d.Watching.FleetV1alpha1().BundleDeployments(d.Namespace).Watch)
			if transport.Unanswered(err) {
				d.Log.Warnf("Nothing is heard of what the hub wants deployed: %s", release.Explain(err))
			}
			return events, d.heard(err)
		},
	}
}

func (d *deployer) watchRevisions(ctx context.Context, running *sync.WaitGroup) (synced func() bool) {
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: d.releases.Revisions(d.owner.Selector()),
		ObjectType:    &metav1.PartialObjectMetadata{},
		Handler:       d.shelf.handler(),
		Transform:     withoutManagedFields,
	})
	running.Go(func() { controller.RunWithContext(ctx) })
	return controller.HasSynced
}

// bundle is the BundleDeployment of a key, or nil.
func (d *deployer) bundle(key string) *fleet.BundleDeployment {
	object, exists, err := d.bundles.GetByKey(cache.NewObjectName(d.Namespace, key).String())
	if err == nil && exists {
		if bd, ok := object.(*fleet.BundleDeployment); ok {
			return bd
		}
	}
	for _, bd := range d.allBundles() { // one whose name is too long for a label
		if registration.LabelValue(bd.Name) == key {
			return bd
		}
	}
	return nil
}

func (d *deployer) allBundles() []*fleet.BundleDeployment {
	list := d.bundles.List()
	all := make([]*fleet.BundleDeployment, 0, len(list))
	for _, object := range list {
		if bd, ok := object.(*fleet.BundleDeployment); ok {
			all = append(all, bd)
		}
	}
	return all
}

// pause waits, and says whether it did so to the end.
func (d *deployer) pause(ctx context.Context, duration time.Duration) bool {
	timer := d.Clock.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// since is the time that has passed.
func (d *deployer) since(t time.Time) time.Duration { return d.Clock.Now().Sub(t) }
