package deploy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/release"
	"github.com/muster-fleet/muster/pkg/transport"
)

// deploymentState is the memory of this run about one BundleDeployment. A restarted agent begins without it.
type deploymentState struct {
	// Only the worker that reconciles the BundleDeployment uses the fields of this group; the queue admits one at a time.

	// failedID and failedGeneration are the deployment ID and the generation whose deployment failed last; failedAt is when, and failure the reason.
	failedID         string
	failedGeneration int64
	failedAt         time.Time
	failure          error
	// retryAt is the earliest time of the next attempt; retries are the pauses between attempts.
	retryAt time.Time
	retries *wait.Backoff
	// correctedAt is the time of the last correction; quickCorrections is how many have had the shortest pause; corrections are the pauses after
	// these, and correctionPause is the last one.
	correctedAt      time.Time
	quickCorrections int
	corrections      *wait.Backoff
	correctionPause  time.Duration
	// unsyncedSince is the time since which the caches of the release's kinds are incomplete; zero if they are complete.
	unsyncedSince time.Time
	// goneSince is the time since which the BundleDeployment is missing on the hub; zero if it exists.
	goneSince time.Time
	// ignoredSince is the time since which the BundleDeployment is for an agent in another namespace that has reported nothing; otherwise zero.
	ignoredSince time.Time
	// notSigned is the revision for which release.ErrNotSigned was returned last; "" if there is none.
	notSigned string
	// sought is the release that adopt last looked for on the member.
	sought string
	// dependenciesMet is the dependencyRequest for which all of dependsOn was met; "" if it was not.
	dependenciesMet string

	// copiedFor are the releases for which a deployment may have copied Secrets and ConfigMaps of the hub without storing a revision whose removal
	// deletes them.
	copiedFor sets.Set[releaseName]

	// labelled are the namespaceOptions that this run has applied last; "" if it has not compared them yet: they may have changed before its start.
	labelled string

	mu sync.Mutex // guards the fields below, which drift workers and event handlers use as well
	// deployed is the release; nil until it was deployed or read.
	deployed *release.Deployed
	// drift is the result of the last comparison of deployed with the cluster.
	drift drift
	// waitsFor names the Bundles that must be ready first; "" if none is missing.
	waitsFor string
	// written is the status that this run wrote last.
	written writtenStatus
	// keepsResources is option keepResources of the BundleDeployment when it was last deleted: its releases lose only their history.
	keepsResources bool
	// unmanaged is whether the BundleDeployment had UnmanagedAnnotation when it was last deleted.
	unmanaged bool
}

func (s *deploymentState) release() (*release.Deployed, drift) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deployed, s.drift
}

// setRelease replaces the release, and drops the drift of the previous one.
func (s *deploymentState) setRelease(deployed *release.Deployed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deployed, s.drift = deployed, drift{}
}

// releaseName identifies a Helm release.
type releaseName struct{ namespace, name string }

// deploymentStates holds the state of each BundleDeployment by its key, and the BundleDeployment of each release.
type deploymentStates struct {
	mu        sync.Mutex
	byKey     map[string]*deploymentState
	byRelease map[releaseName]string
}

func newDeploymentStates() *deploymentStates {
	return &deploymentStates{byKey: map[string]*deploymentState{}, byRelease: map[releaseName]string{}}
}

// get returns the state of a key and creates it if it is missing.
func (s *deploymentStates) get(key string) *deploymentState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[key] == nil {
		s.byKey[key] = &deploymentState{}
	}
	return s.byKey[key]
}

func (s *deploymentStates) drop(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
	maps.DeleteFunc(s.byRelease, func(_ releaseName, of string) bool { return of == key })
}

func (s *deploymentStates) setKey(name releaseName, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byRelease[name] = key
}

func (s *deploymentStates) keyOf(name releaseName) (key string, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, found = s.byRelease[name]
	return key, found
}

func (s *deploymentStates) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.byKey))
}

// waiting returns the keys of the BundleDeployments that wait for others.
func (s *deploymentStates) waiting() (keys []string) {
	for _, key := range s.keys() {
		state := s.get(key)
		state.mu.Lock()
		if state.waitsFor != "" {
			keys = append(keys, key)
		}
		state.mu.Unlock()
	}
	return keys
}

// releaseIndex has the revisions of this agent's releases, found by their labels. A watch fills it. Each operation also records
// its own result, because the watch may be late.
type releaseIndex struct {
	mu        sync.Mutex
	revisions map[string]map[releaseRevision]release.Found // by the key of the BundleDeployment
	changed   func(key string)
}

type releaseRevision struct {
	releaseName
	version int
}

func newReleaseIndex(changed func(key string)) *releaseIndex {
	return &releaseIndex{revisions: map[string]map[releaseRevision]release.Found{}, changed: changed}
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
	r.mu.Lock()
	defer r.mu.Unlock()
	key := f.Labels[release.DeploymentLabel]
	delete(r.revisions[key], releaseRevision{releaseName{f.Namespace, f.Name}, f.Version})
	if len(r.revisions[key]) == 0 {
		delete(r.revisions, key)
	}
}

// removeRelease removes all revisions of a release that was uninstalled.
func (r *releaseIndex) removeRelease(key string, name releaseName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.revisions[key], func(revision releaseRevision, _ release.Found) bool { return revision.releaseName == name })
	if len(r.revisions[key]) == 0 {
		delete(r.revisions, key)
	}
}

// of returns the newest revision of each release of a BundleDeployment: one revision, unless releases with earlier names are left.
func (r *releaseIndex) of(key string) []release.Found {
	r.mu.Lock()
	defer r.mu.Unlock()
	return release.Newest(slices.Collect(maps.Values(r.revisions[key])))
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
