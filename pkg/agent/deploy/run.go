// Package deploy makes the Helm releases of a member match the BundleDeployments on the hub, and reports the result in their
// status.
//
// The Secrets in which Helm keeps each revision carry the BundleDeployment and the deployment ID as labels. They are the
// record of the deployed releases: an agent that is killed at any point, for example by a change of its own Deployment, continues from them.
// The status on the hub decides whether dependsOn is met, which unlabelled release may be adopted, whether a revision that is not signed may be
// kept, and whether a paused BundleDeployment was deployed.
//
//	run.go       Run: the watches, the queues, the workers, the end
//	deploy.go    reconcile: one BundleDeployment from the decision to the status
//	fetch.go     fetching files, values, and the Secrets and ConfigMaps to copy, before a deployment
//	decide.go    the decisions as pure functions: what to do, whether to remove a release, and dependsOn
//	status.go    the status as a pure function, and writing it
//	drift.go     comparing a release with the cluster
//	restored.go  keeping releases that a restored hub, or another hub, does not know
//	remove.go    removing the releases of a BundleDeployment that is gone, or all of them before the agent uninstalls itself
//	stalled.go   reporting that nothing can be deployed
//	state.go     the memory of the run about each BundleDeployment
//	caches.go    the releases and their objects
//	config.go    Config and its defaults
package deploy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

// reconciler is the state of one run. A key is the name of a BundleDeployment, shortened to the length of a label.
type reconciler struct {
	Config
	owner                 release.Owner
	ownKey                string // of the agent's own BundleDeployment
	releases              *release.Client
	core                  corev1client.CoreV1Interface // of the member
	bundleDeploymentStore cache.Store
	seenVersion           func() string // the resourceVersion of the hub in the last list or event
	record                hubRecord
	index                 *releaseIndex
	objects               *objectCache
	states                *deploymentStates
	queue                 workqueue.TypedDelayingInterface[string] // keys to reconcile
	drifts                workqueue.TypedDelayingInterface[string] // keys to compare with the cluster
	end                   context.CancelCauseFunc                  // ends the run
	stalls                *stallTracker
	unknown               flowcontrol.RateLimiter // limits the questions to the hub about BundleDeployments that only the labels of revisions name
	// clusterDeleted logs once that the Cluster was deleted on the hub, and the hub did not ask the agent to uninstall itself.
	clusterDeleted sync.Once
}

// historyLimits limit the history of one release, decompressed: all its revisions together. The API server limits the Secret of a revision to
// a mebibyte, which charts fill with less than ten mebibytes of text, and that text has less than 500,000 nodes of YAML. Revisions that the agent has
// stored have no limit of nodes: it has parsed their manifests before. Of histories with more than Small of other revisions, one is in memory at a time.
var historyLimits = release.HistoryLimits{
	ResponseLimits: transport.ResponseLimits{Bytes: 128 << 20, Values: 500_000}, Nodes: 500_000, TrustSigned: true,
	Small: transport.ResponseLimits{Bytes: 2 << 20, Values: 20_000},
}

// errAskedToUninstall ends the workers, so that nothing is deployed while everything is removed.
var errAskedToUninstall = errors.New("the hub asked the agent to uninstall itself")

// Run deploys until parent ends; it then returns nil, and all its goroutines have ended. It returns ErrUninstall when the
// hub has asked the agent to uninstall itself and everything is removed, and the error of Config.CheckRejection. While the hub does not
// answer, nothing is installed or upgraded, and no release is removed because its BundleDeployment is gone. Drift is still corrected, and
// leftovers and replaced releases are still removed: that needs nothing from the hub.
func Run(parent context.Context, c Config) error {
	c = c.withDefaults()
	releases, err := release.New(c.Member)
	if err != nil {
		return err
	}
	dynamicClient, err := dynamic.NewForConfig(c.Member)
	if err != nil {
		return err
	}
	core, err := corev1client.NewForConfig(c.Member)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(parent)
	limits := historyLimits
	limits.Turns = semaphore.NewWeighted(1)
	newQueue := func() workqueue.TypedDelayingInterface[string] {
		return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: c.Clock})
	}
	d := &reconciler{
		Config: c, releases: releases.LimitHistory(limits), core: core, states: newDeploymentStates(), queue: newQueue(), drifts: newQueue(), end: end,
		owner:  release.Owner{Namespace: c.AgentNamespace, Workspace: c.Workspace, ClusterName: c.ClusterName},
		ownKey: registration.LabelValue(registration.AgentBundleName(c.ClusterName)),
		stalls: newStallTracker(c), unknown: newUnknownLimiter(c),
	}
	d.index = newReleaseIndex(d.queue.Add, d.releaseRemoved)
	d.objects = newObjectCache(ctx, dynamicClient, d.objectChanged)

	err = d.run(ctx)
	switch {
	case parent.Err() != nil:
		return nil
	case errors.Is(err, errAskedToUninstall):
		return d.removeEverything(parent)
	}
	return err
}

// run watches and works until ctx ends. The workers start when the BundleDeployments and the releases are listed
// completely, because what exists on the member and not on the hub is removed.
func (d *reconciler) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer d.objects.running.Wait() // after the workers, which start its watches
	defer running.Wait()
	defer d.queue.ShutDown()
	defer d.drifts.ShutDown()
	defer d.end(nil)

	running.Go(func() { d.stalls.reportSlowStart(ctx) })
	loadHistoryKey := func(ctx context.Context) error {
		err := d.loadHistoryKey(ctx)
		d.stalls.note(ctx, readHistoryKey, err)
		return err
	}
	if !d.untilDone(ctx, loadHistoryKey) {
		return context.Cause(ctx)
	}
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: d.bundleDeploymentListerWatcher(), ObjectType: &fleet.BundleDeployment{}, Handler: d.bundleDeploymentHandler(), Transform: withoutManagedFields,
	})
	d.bundleDeploymentStore, d.seenVersion = store, informer.LastSyncResourceVersion
	_, revisions := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: d.stalls.noteErrors(d.releases.Revisions(d.owner.Selector())), ObjectType: &metav1.PartialObjectMetadata{},
		Handler: d.index.handler(), Transform: release.ReduceRevision,
	})
	running.Go(func() { informer.RunWithContext(ctx) })
	running.Go(func() { revisions.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced, revisions.HasSynced) {
		return context.Cause(ctx)
	}
	if asksToUninstall(d.bundleDeployment(d.ownKey)) {
		return errAskedToUninstall
	}
	d.checkForRestore(ctx)
	d.enqueueAll()
	for range d.Workers {
		running.Go(func() { work(ctx, d.queue, d.reconcile) })
	}
	for range d.DriftWorkers {
		running.Go(func() { work(ctx, d.drifts, d.compare) })
	}
	running.Go(func() { d.compareRegularly(ctx) })
	<-ctx.Done()
	return context.Cause(ctx)
}

// loadHistoryKey makes the client distinguish the revisions of this agent from forged ones, and reads the recorded version of the hub, which is
// in the same Secret.
func (d *reconciler) loadHistoryKey(ctx context.Context) error {
	keyed, err := d.releases.EnsureHistoryKey(ctx, d.owner)
	if err != nil {
		return err
	}
	d.releases = keyed
	return d.readRecord(ctx)
}

// untilDone repeats a step until it succeeds, and reports whether it did before ctx ended.
func (d *reconciler) untilDone(ctx context.Context, step func(context.Context) error) bool {
	pauses := timing.Backoff(d.Timing.RetryFirst, d.Timing.RetryMax)
	for {
		err := step(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			d.Log.Warnf("Trying again: %s", release.Explain(err))
		}
		if timing.Pause(ctx, d.Clock, pauses.Step(), nil); ctx.Err() != nil {
			return false
		}
	}
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

// compareJitter is the part by which an interval between two comparisons may be longer.
const compareJitter = 0.2

// compareRegularly compares everything from time to time, for changes without an event.
func (d *reconciler) compareRegularly(ctx context.Context) {
	checked := map[string]bool{}
	d.warnOfLeftReleases(ctx, checked)
	for interval := d.CompareInterval; ; {
		timer := d.Clock.NewTimer(wait.Jitter(interval, compareJitter))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case interval = <-d.CompareIntervalChanged:
			timer.Stop()
			setDefault(&interval, DefaultCompareInterval)
			continue
		case <-timer.C():
		}
		d.warnOfLeftReleases(ctx, checked)
		d.checkForRestore(ctx)
		for key, state := range d.states.all() {
			state.requestComparison()
			d.drifts.Add(key)
		}
		d.enqueueAll()
	}
}

// enqueueAll enqueues each BundleDeployment on the hub and each release on the member.
func (d *reconciler) enqueueAll() {
	for _, bd := range d.bundleDeployments() {
		d.queue.Add(registration.LabelValue(bd.Name))
	}
	for _, key := range d.index.keys() {
		d.queue.Add(key)
	}
}

// objectChanged handles the event of an object that belongs to a release.
func (d *reconciler) objectChanged(name releaseName) {
	if key, found := d.states.keyOf(name); found {
		d.queue.AddAfter(key, d.Timing.Settle)
		d.drifts.AddAfter(key, d.Timing.Settle)
	}
}

// releaseRemoved enqueues the BundleDeployments that tried to deploy a release of the same name: that may have been in conflict with the removed one.
func (d *reconciler) releaseRemoved(name releaseName) {
	for key, state := range d.states.all() {
		if state.forgetTried(name) {
			d.queue.Add(key)
		}
	}
}

func (d *reconciler) bundleDeploymentHandler() cache.ResourceEventHandler {
	enqueue := func(object any) {
		bd, ok := withoutTombstone(object).(*fleet.BundleDeployment)
		if !ok {
			return
		}
		d.queue.Add(registration.LabelValue(bd.Name))
		for _, waiting := range d.states.waiting() {
			d.queue.Add(waiting)
		}
	}
	// The request to uninstall ends the run at once, without a worker: all workers may be busy for a long time.
	endIfAsked := func(object any) {
		if bd, ok := object.(*fleet.BundleDeployment); ok && registration.LabelValue(bd.Name) == d.ownKey && asksToUninstall(bd) {
			d.end(errAskedToUninstall)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { endIfAsked(o); enqueue(o) },
		UpdateFunc: func(before, after any) { d.dropWrittenStatus(before, after); endIfAsked(after); enqueue(after) },
		DeleteFunc: func(o any) { d.noteDeleted(o); enqueue(o) },
	}
}

func (d *reconciler) noteDeleted(object any) {
	if bd, ok := withoutTombstone(object).(*fleet.BundleDeployment); ok {
		d.states.get(registration.LabelValue(bd.Name)).noteDeleted(bd)
	}
}

// dropWrittenStatus drops the status written last if the hub was restored from a backup, which lowers resource versions.
// Otherwise the written status would count as newer than the restored one, and never be written again.
func (d *reconciler) dropWrittenStatus(before, after any) {
	older, isOlder := before.(*fleet.BundleDeployment)
	newer, isNewer := after.(*fleet.BundleDeployment)
	if isOlder && isNewer && number(newer.ResourceVersion) < number(older.ResourceVersion) {
		d.states.get(registration.LabelValue(newer.Name)).setWritten(writtenStatus{})
	}
}

func (d *reconciler) bundleDeploymentListerWatcher() cache.ListerWatcher {
	interrupted := false
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return d.listBundleDeployments(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if interrupted && o.SendInitialEvents == nil {
				if err := d.checkContinues(ctx, o.ResourceVersion); err != nil {
					return nil, err
				}
			}
			events, err := transport.Watch(ctx, o, d.Watching.FleetV1alpha1().BundleDeployments(d.Namespace).Watch)
			if transport.Unanswered(err) {
				d.Log.Warnf("Changes of BundleDeployments do not arrive: %s", release.Explain(err))
			}
			interrupted = err != nil && o.SendInitialEvents == nil // after a rejected request for initial events, the informer lists
			d.endIfRejected(err)
			return events, err
		},
	}
}

// checkContinues returns an error, after which the informer lists again, if the hub has not reached the version from which a watch is to
// continue. A restored API server sends no event, and no error, until it has reached that version.
func (d *reconciler) checkContinues(ctx context.Context, version string) error {
	list, err := d.listBundleDeployments(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if number(list.ResourceVersion) < number(version) {
		return apierrors.NewResourceExpired(fmt.Sprintf("the hub was restored from a backup: its resourceVersion was %s and is %s", version, list.ResourceVersion))
	}
	return nil
}

// firstPage is how many BundleDeployments a page has at first.
const firstPage = 64

// listBundleDeployments lists in pages if one response with all BundleDeployments is larger than the limits of hubclient. An API server serves a whole
// list from its cache, but pages, before Kubernetes 1.31, from etcd. The number of pages is not limited, like that of the events of a watch.
//
// It refuses a list without a resourceVersion. Every list of an API server has one; a list that a proxy made up must not look like a hub without
// BundleDeployments.
func (d *reconciler) listBundleDeployments(ctx context.Context, o metav1.ListOptions) (*fleet.BundleDeploymentList, error) {
	all := &fleet.BundleDeploymentList{}
	for inPages := false; ; {
		list, err := d.Hub.FleetV1alpha1().BundleDeployments(d.Namespace).List(ctx, o)
		if tooLarge := (*transport.TooLargeError)(nil); errors.As(err, &tooLarge) && (!inPages || o.Limit > 1) {
			if o.Limit /= 2; !inPages {
				o.Limit, inPages = firstPage, true
			}
			o.ResourceVersion, o.ResourceVersionMatch = "", "" // with the version 0, an API server ignores the limit
			continue
		}
		if err == nil && list.ResourceVersion == "" {
			err = errors.New("the answer is not from a Kubernetes API server")
		}
		d.endIfRejected(err)
		if err != nil || !inPages {
			return list, err
		}
		all.ListMeta, all.Items = list.ListMeta, append(all.Items, list.Items...)
		if o.Continue = list.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// endIfRejected ends the run if it is certain, after this result of a request to the hub, that the hub rejects the credential.
func (d *reconciler) endIfRejected(err error) {
	if rejected := d.CheckRejection(err); rejected != nil {
		d.end(rejected)
	}
}

// bundleDeployment returns the cached BundleDeployment of a key, or nil.
func (d *reconciler) bundleDeployment(key string) *fleet.BundleDeployment {
	if object, exists, err := d.bundleDeploymentStore.GetByKey(cache.NewObjectName(d.Namespace, key).String()); err == nil && exists {
		return object.(*fleet.BundleDeployment)
	}
	for _, bd := range d.bundleDeployments() { // a name that is too long for a label
		if registration.LabelValue(bd.Name) == key {
			return bd
		}
	}
	return nil
}

func (d *reconciler) bundleDeployments() (all []*fleet.BundleDeployment) {
	for _, object := range d.bundleDeploymentStore.List() {
		all = append(all, object.(*fleet.BundleDeployment))
	}
	return all
}

// retryLater logs the error of a step that ends the pass, and enqueues the key after a growing pause.
func (d *reconciler) retryLater(ctx context.Context, key string, state *deploymentState, err error) {
	if ctx.Err() != nil {
		return
	}
	d.log(key).Warnf("Trying again: %s", release.Explain(err))
	d.queue.AddAfter(key, state.attempts.pause(d.Timing))
}

func (d *reconciler) log(key string) logrus.FieldLogger {
	return d.Log.WithField(registration.LogBundleDeployment, key)
}
