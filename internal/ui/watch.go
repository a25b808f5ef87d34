package ui

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// entry is the reduced form of a Cluster in the cache of the page. Its metadata contains only the fields that a cache needs, and the labels.
type entry struct {
	metav1.ObjectMeta
	View view.Cluster
	// fingerprint changes with every change of the Cluster except a heartbeat.
	fingerprint uint64
}

// maxText limits the length of each text that a member reports, because the page keeps the texts of all clusters in memory.
const maxText = 1024

// entryOf converts a Cluster to an entry. It is the transform of the informer.
func entryOf(object any) (any, error) {
	c, ok := object.(*fleet.Cluster)
	if !ok {
		return object, nil
	}
	e := &entry{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion, Labels: c.Labels},
		View:       view.OfCluster(c),
	}
	for _, text := range []*string{&e.View.Message, &e.View.Agent, &e.View.Kubernetes, &e.View.Bundles} {
		*text = shorten(*text)
	}
	digest := fnv.New64a()
	shown := e.View
	shown.LastSeen = nil
	fmt.Fprint(digest, shown, c.Labels, c.Status.Conditions, c.Status.Summary, c.Status.Agent.Registration)
	e.fingerprint = digest.Sum64()
	return e, nil
}

// shorten cuts a text for the page.
func shorten(text string) string { return fleetstatus.Cut(text, maxText) }

// watchedFleet contains all Clusters, from one watch.
type watchedFleet struct {
	informer cache.SharedIndexInformer

	mutex   sync.Mutex
	err     error         // of the last request of the watch, or nil
	changed chan struct{} // closed by the next change
	sorted  []*entry      // by name; nil after a change
	changes int           // number of changes other than heartbeats
}

// watch returns after all Clusters were listed, or with the error with which the hub refuses to list them.
func watch(ctx context.Context, client fleetclient.FleetV1alpha1Interface, namespace string) (*watchedFleet, error) {
	clusters := client.Clusters(namespace)
	f := &watchedFleet{changed: make(chan struct{})}
	f.informer = cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := clusters.List(ctx, o)
			f.set(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			w, err := clusters.Watch(ctx, o)
			f.set(err)
			return w, err
		},
	}, &fleet.Cluster{}, 0, nil)
	refused := make(chan error, 1)
	err := f.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
			select {
			case refused <- err:
			default:
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if err := f.informer.SetTransform(entryOf); err != nil {
		return nil, err
	}
	_, err = f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { f.change(true) },
		UpdateFunc: func(before, now any) {
			f.change(before.(*entry).fingerprint != now.(*entry).fingerprint)
		},
		DeleteFunc: func(any) { f.change(true) },
	})
	if err != nil {
		return nil, err
	}
	go f.informer.RunWithContext(ctx)
	select {
	case <-f.informer.HasSyncedChecker().Done():
		return f, nil
	case err := <-refused:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// set records the result of a request of the watch.
func (f *watchedFleet) set(err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if (f.err == nil) != (err == nil) {
		f.notify()
	}
	f.err = err
}

// change records a change, which may be only a heartbeat.
func (f *watchedFleet) change(notOnlyHeartbeat bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.sorted = nil
	if notOnlyHeartbeat {
		f.changes++
	}
	f.notify()
}

// notify is called with the mutex held.
func (f *watchedFleet) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// nextChange returns a channel that is closed by the next change, including a failure or a recovery of the watch.
func (f *watchedFleet) nextChange() <-chan struct{} {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.changed
}

// problem returns the reason why the page may be out of date, or "" if the watch works.
func (f *watchedFleet) problem() string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.err == nil {
		return ""
	}
	return "The hub does not answer, so this page may be out of date: " + f.err.Error()
}

// all returns all Clusters, sorted by namespace and name, and the number of changes so far. The caller must not change the Clusters.
func (f *watchedFleet) all() (clusters []*entry, changes int) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.sorted == nil {
		for _, object := range f.informer.GetStore().List() {
			f.sorted = append(f.sorted, object.(*entry))
		}
		slices.SortFunc(f.sorted, func(a, b *entry) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		})
	}
	return f.sorted, f.changes
}

// get returns nil if there is no such Cluster.
func (f *watchedFleet) get(namespace, name string) *entry {
	object, found, err := f.informer.GetStore().GetByKey(cache.NewObjectName(namespace, name).String())
	if err != nil || !found {
		return nil
	}
	return object.(*entry)
}
