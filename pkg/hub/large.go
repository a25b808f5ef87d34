package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// freeMemory is the memory of an object that does not count. Most objects take less, so that the hub keeps nothing about them here.
	freeMemory = 8 << 10
	// smallPart is the memory of a part that stays in the cache when the other parts of the object are dropped.
	smallPart = 2 << 10
	// targetMemory is what a target of a Bundle takes in the plan of the Bundle and in the index of Bundles by targets.
	targetMemory = 400
	// restoreRetry is the time after which the hub writes an object again that the cache should have whole and still lacks.
	restoreRetry = time.Minute
)

// largeObjects counts the memory that the large objects of users take in the caches, for each workspace, and drops the large parts of those for
// which there is no room. Each object has a limit of its own, but a user may create any number of them.
type largeObjects struct {
	limit atomic.Int64 // of each workspace, in bytes

	mu         sync.Mutex
	workspaces map[string]*largeInWorkspace // with at least one large object
}

// largeInWorkspace are the large objects of one workspace.
type largeInWorkspace struct {
	kept    map[objectID]largeObject // counted
	dropped map[objectID]largeObject // without their large parts; they do not count
	total   int64                    // of kept
}

type objectID struct {
	kind reflect.Type
	name string
}

type largeObject struct {
	uid      types.UID
	size     int64     // beyond freeMemory
	restored time.Time // when restore has last written it
}

// newLargeObjects returns the count of no objects, with the default limit.
func newLargeObjects() *largeObjects {
	l := &largeObjects{workspaces: map[string]*largeInWorkspace{}}
	l.limit.Store(config.Bundles{}.WorkspaceMemory())
	return l
}

// transform returns a transform that also packs large values, and drops large parts for which the workspace of the object has no room. first is applied
// before: it limits the memory of a single object with its values decoded, so that decoding them again is limited as well.
func (l *largeObjects) transform(first cache.TransformFunc) cache.TransformFunc {
	return func(object any) (any, error) {
		kept, err := first(object)
		if m, ok := kept.(metav1.Object); ok && err == nil {
			packValues(m)
			l.reduce(m)
		}
		return kept, err
	}
}

// reduce drops the large parts of an object for which its workspace has no room. Informers may transform an object of a list twice: one whose parts are
// dropped already stays as it is.
func (l *largeObjects) reduce(object metav1.Object) {
	excess, parts := partsOf(object)
	if excess == nil || *excess != (fleet.MemoryExcess{}) {
		return
	}
	object.SetManagedFields(nil) // the cache does not keep them
	size, limit := int64(0), l.limit.Load()
	if limit != config.NoMemoryLimit { // otherwise nothing counts, and what was dropped before is forgotten
		size = memoryOf(object)
	}
	if l.count(object, size-freeMemory, limit) {
		return
	}
	*excess = fleet.MemoryExcess{Size: size, Limit: limit}
	for _, drop := range parts {
		if drop(); memoryOf(object) <= freeMemory {
			return
		}
	}
}

// count counts the memory of an object in place of that of its earlier version. It returns false if the workspace has no room for it. A version that
// takes no more than the one before always has: so an update of the status drops nothing after the limit was lowered.
func (l *largeObjects) count(object metav1.Object, size, limit int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := idOf(object)
	w := l.workspaces[object.GetNamespace()]
	if w == nil {
		if size <= 0 {
			return true
		}
		w = &largeInWorkspace{kept: map[objectID]largeObject{}, dropped: map[objectID]largeObject{}}
		l.workspaces[object.GetNamespace()] = w
	}
	before := w.kept[id]
	w.remove(id)
	large := largeObject{uid: object.GetUID(), size: size, restored: w.dropped[id].restored}
	delete(w.dropped, id)
	switch {
	case size <= 0:
	case w.total+size <= limit, before.uid == large.uid && size <= before.size:
		w.kept[id] = large
		w.total += size
		return true
	case object.GetLabels()[fleet.ClusterManagementLabel] == "": // otherwise the hub does not write to it
		w.dropped[id] = large
		return false
	}
	l.tidy(object.GetNamespace(), w)
	return size <= 0
}

func (w *largeInWorkspace) remove(id objectID) {
	w.total -= w.kept[id].size
	delete(w.kept, id)
}

// tidy forgets a workspace without large objects. The caller has locked mu.
func (l *largeObjects) tidy(workspace string, w *largeInWorkspace) {
	if len(w.kept)+len(w.dropped) == 0 {
		delete(l.workspaces, workspace)
	}
}

// forget is the handler of the event that an object was deleted. An object of the same name may have been created again, and may be counted before
// this event arrives.
func (l *largeObjects) forget(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	deleted, err := meta.Accessor(object)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w, id := l.workspaces[deleted.GetNamespace()], idOf(deleted)
	if w == nil {
		return
	}
	if w.kept[id].uid == deleted.GetUID() {
		w.remove(id)
	}
	if w.dropped[id].uid == deleted.GetUID() {
		delete(w.dropped, id)
	}
	l.tidy(deleted.GetNamespace(), w)
}

// restorable is an object whose large parts were dropped, and for which there is room now.
type restorable struct {
	workspace string
	id        objectID
	largeObject
}

// findRestorable returns the dropped objects that fit together into what is free in their workspaces, and that were not returned within restoreRetry. The
// smallest come first, so that as many as possible are whole.
func (l *largeObjects) findRestorable(now time.Time) (all []restorable) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for workspace, w := range l.workspaces {
		var dropped []restorable
		for id, large := range w.dropped {
			dropped = append(dropped, restorable{workspace, id, large})
		}
		slices.SortFunc(dropped, func(a, b restorable) int {
			return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.id.name, b.id.name))
		})
		room := l.limit.Load() - w.total
		for _, r := range dropped {
			if room -= r.size; room < 0 {
				break
			}
			if now.Sub(r.restored) >= restoreRetry {
				r.restored = now
				w.dropped[r.id] = r.largeObject
				all = append(all, r)
			}
		}
	}
	return all
}

// restore writes an annotation to the dropped objects for which there is room now: the event of the write brings the whole object to the cache. A
// request alone would not, because only events change a cache.
func (l *largeObjects) restore(ctx context.Context, client metadata.Interface, now time.Time) {
	for _, r := range l.findRestorable(now) {
		patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{ // texts have JSON
			"uid": r.uid, "annotations": map[string]string{fleet.RestoredAnnotation: now.UTC().Format(time.RFC3339)},
		}})
		_, err := client.Resource(fleet.SchemeGroupVersion.WithResource(resources[r.id.kind])).Namespace(r.workspace).
			Patch(ctx, r.id.name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil { // the event of its deletion is on its way
			logrus.Warnf("Cannot annotate %s %s/%s, so that the hub does not have its large parts in memory: %v", resources[r.id.kind], r.workspace, r.id.name, err)
		}
	}
}

// resources are the resources of the kinds whose objects are counted.
var resources = map[reflect.Type]string{
	reflect.TypeFor[*fleet.Bundle]():                   "bundles",
	reflect.TypeFor[*fleet.Cluster]():                  "clusters",
	reflect.TypeFor[*fleet.ClusterGroup]():             "clustergroups",
	reflect.TypeFor[*fleet.ClusterRegistration]():      "clusterregistrations",
	reflect.TypeFor[*fleet.ClusterRegistrationToken](): "clusterregistrationtokens",
}

// countsMemory reports whether the objects of a kind are counted.
func countsMemory(kind schema.GroupVersionKind) bool {
	return kind.Group == fleet.SchemeGroupVersion.Group && kind.Kind != bundleDeploymentKind
}

// readLimit sets the limit of the hub's ConfigMap before the caches are filled. Without a valid one, the default applies until the hub has loaded its
// configuration: see follow. settings.Load reads the ConfigMap again, because a hub may stand by for days between the two.
func (l *largeObjects) readLimit(ctx context.Context, client corev1client.ConfigMapsGetter, systemNamespace string) {
	configMap, err := client.ConfigMaps(systemNamespace).Get(ctx, registration.HubConfigMap, metav1.GetOptions{})
	if err != nil {
		return
	}
	if hub, _, err := config.ParseHub(configMap.Data[registration.ConfigKey]); err == nil {
		l.limit.Store(hub.Bundles.WorkspaceMemory())
	}
}

// follow restores objects, and applies the current limit, until ctx ends.
func (l *largeObjects) follow(ctx context.Context, c *app.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		l.limit.Store(c.Config.Get().Bundles.WorkspaceMemory())
		l.restore(ctx, c.Metadata, c.Clock.Now())
	}, c.RepairDelay())
}

// packValues packs the free-form values of an object of a user: most of the memory of a Bundle is its Helm values.
func packValues(object metav1.Object) {
	forValues(object, func(values **fleet.GenericMap) { (*values).Pack() })
}

// forValues calls do for the values of an object that packValues packs, in an order that depends only on its spec.
func forValues(object any, do func(values **fleet.GenericMap)) {
	ofHelm := func(helm *fleet.HelmOptions) {
		if helm != nil && helm.Values != nil {
			do(&helm.Values)
		}
	}
	switch o := object.(type) {
	case *fleet.Bundle:
		ofHelm(o.Spec.Helm)
		for i := range o.Spec.Targets {
			ofHelm(o.Spec.Targets[i].Helm)
		}
	case *fleet.Cluster:
		if o.Spec.TemplateValues != nil {
			do(&o.Spec.TemplateValues)
		}
	}
}

func idOf(object metav1.Object) objectID { return objectID{reflect.TypeOf(object), object.GetName()} }

// partsOf returns functions that drop the large parts of an object, the largest usual part first, and where the reason is kept: nil for an object of
// another kind.
func partsOf(object metav1.Object) (excess *fleet.MemoryExcess, drop []func()) {
	metadata := func(mark *bool) func() {
		return func() { *mark = limitMetadata(object, smallPart, smallPart) || *mark }
	}
	switch o := object.(type) {
	case *fleet.Bundle:
		return &o.Spec.Excess, []func(){
			func() {
				o.Spec = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true, Excess: o.Spec.Excess} // see reduceBundle
			},
			metadata(&o.Spec.MetadataTooLarge),
		}
	case *fleet.Cluster:
		return &o.Spec.Excess, []func(){
			func() { reduceTemplateValues(&o.Spec, smallPart) },
			func() { reduceSettings(&o.Spec, smallPart) },
			metadata(&o.Spec.MetadataTooLarge),
		}
	case *fleet.ClusterGroup:
		return &o.Spec.Excess, []func(){
			metadata(&o.Spec.MetadataTooLarge),
			func() { o.Spec.Selector, o.Spec.MetadataTooLarge = nil, true },
		}
	case *fleet.ClusterRegistration:
		return &o.Spec.Excess, []func(){
			func() { o.Spec.ClusterLabels, o.Spec.TooLarge = nil, true },
			metadata(&o.Spec.TooLarge),
		}
	case *fleet.ClusterRegistrationToken:
		return &o.Excess, []func(){
			metadata(new(bool)), // nothing depends on it
			func() {
				o.Spec.ClientIDs, o.Spec.Labels, o.Spec.AllowedLabelKeys, o.Undecodable = nil, nil, nil, "spec"
			},
		}
	}
	return nil, nil
}

// memoryOf returns the memory of an object of a user. What the hub computes from it and keeps counts too: the compiled selector of a group takes about as
// much as the selector.
func memoryOf(object metav1.Object) int64 {
	size := sizeOf(object.GetFinalizers()) + sizeOf(object.GetOwnerReferences()) + sizeOfMap(object.GetLabels()) + sizeOfMap(object.GetAnnotations())
	switch o := object.(type) {
	case *fleet.Bundle:
		size += sizeOf(o.Spec) + len(o.Spec.Targets)*targetMemory
	case *fleet.Cluster:
		size += sizeOf(o.Spec)
	case *fleet.ClusterGroup:
		if clustergroup.Size(o) <= clustergroup.MaxSelector { // otherwise all groups share what stands for the selector
			size += 2 * sizeOf(o.Spec)
		}
	case *fleet.ClusterRegistration:
		size += sizeOf(o.Spec)
	case *fleet.ClusterRegistrationToken:
		size += sizeOf(o.Spec)
	}
	return int64(size)
}

// sizeOf returns the memory that a decoded value takes, without the allocator's overhead.
func sizeOf(value any) int {
	left := math.MaxInt
	subtractSize(reflect.ValueOf(value), &left)
	return math.MaxInt - left
}
