package deploy

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

// releaseIndex has the revisions of this agent's releases, found by their labels. A watch fills it. Each operation also records
// its own result, because the watch may be late.
type releaseIndex struct {
	mu        sync.Mutex
	revisions map[string]map[releaseRevision]release.Found // by the key of the BundleDeployment
	changed   func(key string)
	removed   func(releaseName) // is called when the last revision of a release is removed
}

type releaseRevision struct {
	releaseName
	version int
}

func newReleaseIndex(changed func(key string), removed func(releaseName)) *releaseIndex {
	return &releaseIndex{revisions: map[string]map[releaseRevision]release.Found{}, changed: changed, removed: removed}
}

func (r *releaseIndex) add(f release.Found) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := f.Labels[release.DeploymentLabel]
	if r.revisions[key] == nil {
		r.revisions[key] = map[releaseRevision]release.Found{}
	}
	r.revisions[key][releaseRevision{releaseName{f.Namespace, f.Name}, f.Version}] = f
}

func (r *releaseIndex) remove(f release.Found) {
	r.removeRevisions(f.Labels[release.DeploymentLabel], releaseName{f.Namespace, f.Name}, func(version int) bool { return version == f.Version })
}

// removeRelease removes all revisions of a release that was uninstalled.
func (r *releaseIndex) removeRelease(key string, name releaseName) {
	r.removeRevisions(key, name, func(int) bool { return true })
}

func (r *releaseIndex) removeRevisions(key string, name releaseName, matches func(version int) bool) {
	hadRevision, hasRevision := false, false
	r.mu.Lock()
	maps.DeleteFunc(r.revisions[key], func(revision releaseRevision, _ release.Found) bool {
		isRemoved := revision.releaseName == name && matches(revision.version)
		hadRevision = hadRevision || isRemoved
		hasRevision = hasRevision || revision.releaseName == name && !isRemoved
		return isRemoved
	})
	if len(r.revisions[key]) == 0 {
		delete(r.revisions, key)
	}
	r.mu.Unlock()
	if hadRevision && !hasRevision {
		r.removed(name)
	}
}

// of returns the newest revision of each release of a BundleDeployment: one revision, unless releases with earlier names are left.
func (r *releaseIndex) of(key string) []release.Found {
	r.mu.Lock()
	defer r.mu.Unlock()
	return release.Newest(slices.Collect(maps.Values(r.revisions[key])))
}

// followsFailure reports whether the deployment before a revision has failed.
func (r *releaseIndex) followsFailure(key string, of release.Deployed) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var before release.Found
	for revision, f := range r.revisions[key] {
		if revision.releaseName == (releaseName{of.Namespace, of.Name}) && f.Version < of.Version && f.Version > before.Version {
			before = f
		}
	}
	return before.Failed
}

// keys returns the keys of the BundleDeployments that have releases.
func (r *releaseIndex) keys() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.revisions))
}

func (r *releaseIndex) handler() cache.ResourceEventHandler {
	handle := func(change func(release.Found)) func(any) {
		return func(object any) {
			if secret, ok := withoutTombstone(object).(metav1.Object); ok {
				found := release.FoundIn(secret)
				change(found)
				r.changed(found.Labels[release.DeploymentLabel])
			}
		}
	}
	add, remove := handle(r.add), handle(r.remove)
	return cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }, DeleteFunc: remove}
}

// objectCache holds the objects of all releases as they are on the cluster, ConfigMaps and Secrets without their data. It has one watch for each kind
// that a release contains, limited to objects that Helm created.
type objectCache struct {
	ctx     context.Context // of the run
	client  dynamic.Interface
	changed func(releaseName)
	running sync.WaitGroup

	mu    sync.Mutex
	kinds map[schema.GroupVersionResource]*kindCache
}

type kindCache struct {
	store  cache.Store
	synced func() bool
}

func newObjectCache(ctx context.Context, client dynamic.Interface, changed func(releaseName)) *objectCache {
	return &objectCache{ctx: ctx, client: client, changed: changed, kinds: map[schema.GroupVersionResource]*kindCache{}}
}

// watch starts the missing watches for the kinds of the objects, and reports whether the caches of all kinds are filled.
func (c *objectCache) watch(objects []release.Object) (synced bool) {
	synced = true
	for _, o := range objects {
		synced = c.kind(o.Resource).synced() && synced
	}
	return synced
}

// get returns the cached object, or nil.
func (c *objectCache) get(o release.Object) *unstructured.Unstructured {
	found, exists, err := c.kind(o.Resource).store.GetByKey(cache.NewObjectName(o.Desired.GetNamespace(), o.Desired.GetName()).String())
	if err != nil || !exists {
		return nil
	}
	object, _ := found.(*unstructured.Unstructured)
	return object
}

func (c *objectCache) kind(resource schema.GroupVersionResource) *kindCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.kinds[resource]; k != nil {
		return k
	}
	const createdByHelm = release.ManagedByLabel + "=" + release.ManagedByHelm
	transform := withoutManagedFields
	if hasOnlyData(resource) {
		transform = withoutData
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: transport.ListWatch(c.client.Resource(resource), func(o *metav1.ListOptions) { o.LabelSelector = createdByHelm }),
		ObjectType:    &unstructured.Unstructured{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    c.notify,
			UpdateFunc: func(before, after any) { c.notify(before); c.notify(after) }, // it may belong to another release now
			DeleteFunc: c.notify,
		},
		Transform: transform,
	})
	k := &kindCache{store: store, synced: controller.HasSynced}
	c.kinds[resource] = k
	if c.ctx.Err() == nil {
		c.running.Go(func() { controller.RunWithContext(c.ctx) })
	}
	return k
}

func (c *objectCache) notify(object any) {
	if accessor, err := meta.Accessor(withoutTombstone(object)); err == nil {
		annotations := accessor.GetAnnotations()
		c.changed(releaseName{annotations[release.NamespaceAnnotation], annotations[release.NameAnnotation]})
	}
}

func withoutTombstone(object any) any {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return object
}

func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// hasOnlyData reports whether a resource is that of ConfigMaps or Secrets. Their data are not needed for a status, and users of the member may store
// any number of them with the label of Helm.
func hasOnlyData(resource schema.GroupVersionResource) bool {
	return resource.Group == corev1.GroupName && (resource.Resource == "configmaps" || resource.Resource == "secrets")
}

// withoutData keeps of a ConfigMap or Secret what is needed for events, for a status and to detect that it has changed.
func withoutData(object any) (any, error) {
	o, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	kept := &unstructured.Unstructured{Object: map[string]any{}}
	kept.SetGroupVersionKind(o.GroupVersionKind())
	kept.SetNamespace(o.GetNamespace())
	kept.SetName(o.GetName())
	kept.SetUID(o.GetUID())
	kept.SetResourceVersion(o.GetResourceVersion())
	kept.SetCreationTimestamp(o.GetCreationTimestamp())
	kept.SetDeletionTimestamp(o.GetDeletionTimestamp())
	annotations := map[string]string{}
	for _, name := range []string{release.NameAnnotation, release.NamespaceAnnotation} {
		if value := o.GetAnnotations()[name]; value != "" && len(value) <= validation.DNS1123SubdomainMaxLength {
			annotations[name] = value
		}
	}
	kept.SetAnnotations(annotations)
	return kept, nil
}
