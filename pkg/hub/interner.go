package hub

import (
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
)

// interner keeps equal strings, labels and annotations of different objects in memory once. A registration makes some
// ten objects that name the same namespace and account, and all registrations make them with the same labels. It reduces the
// memory for the objects of a registration by a third.
type interner struct {
	seed maphash.Seed

	mu sync.Mutex
	internedValues
}

// internedValues are the values of the objects since the interner was emptied.
type internedValues struct {
	strings   map[uint64]string              // by their hash: a string as the key takes a third more
	maps      map[uint64]map[string]string   // by sum
	resources map[string]corev1.ResourceList // by the joined names and quantities
	digests   map[fleet.SpecDigests]*fleet.SpecDigests
	// Of the last object: those of all agents are equal.
	helm     *fleet.HelmOptions
	selector *metav1.LabelSelector
	hub      *fleet.AgentHub

	size int // of all entries
}

func newInterner() *interner {
	w := &interner{seed: maphash.MakeSeed()}
	w.forget()
	return w
}

// transform sets the transform of an informer, which removes from each object what the hub does not read and interns the rest.
// first, if not nil, is applied before. The informer of an embedding server that runs already keeps its own.
func (w *interner) transform(informer cache.SharedIndexInformer, first cache.TransformFunc) {
	_ = informer.SetTransform(func(object any) (any, error) {
		kept, err := object, error(nil) // also after a panic: without the object, the cache would not be filled
		func() {
			defer guard.Recover(guard.Transform, object, nil)
			kept, err = w.reduce(informer.GetStore(), object, first)
		}()
		return kept, err
	})
}

func (w *interner) reduce(store cache.Store, object any, first cache.TransformFunc) (any, error) {
	before := cached(store, object)
	if isSameVersion(before, object) { // after an outage the informer lists all objects again
		return before, nil
	}
	keepDigests(before, object)
	keepPacked(before, object)
	if first != nil {
		var err error
		if object, err = first(object); err != nil {
			return nil, err
		}
	}
	object = w.intern(before, object)
	shareSpec(before, object) // last, because the spec in the cache must not change
	return object, nil
}

// shareSpec gives a Bundle the spec of the version in the cache if it is the same: most events are reports about its status, and the plan of the Bundle keeps
// parts of the version from which it was made. Otherwise each spec would be in memory twice.
func shareSpec(before, object any) {
	old, _ := before.(*fleet.Bundle)
	b, _ := object.(*fleet.Bundle)
	if old == nil || b == nil || old.UID != b.UID || old.Generation != b.Generation || b.Generation == 0 ||
		old.Spec.TooLarge || old.Spec.MetadataTooLarge || b.Spec.TooLarge || b.Spec.MetadataTooLarge {
		return
	}
	b.Spec = old.Spec
}

// keepDigests sets the digests of a BundleDeployment to those of the version in the cache if the spec is the same: most events are reports of
// agents, and the digests cost far more than the rest of an event.
func keepDigests(before, object any) {
	old, _ := before.(*fleet.BundleDeployment)
	deployment, _ := object.(*fleet.BundleDeployment)
	if old != nil && deployment != nil && old.UID == deployment.UID && old.Generation == deployment.Generation && deployment.Generation > 0 {
		deployment.Spec.CachedDigests = old.Spec.CachedDigests
	}
}

// keepPacked sets the values of an object to the packed ones of the version in the cache if the spec is the same: to pack them again for each report about the
// status would cost as much as to decode the object.
func keepPacked(before, object any) {
	old, _ := meta.Accessor(before)
	m, _ := meta.Accessor(object)
	if old == nil || m == nil || old.GetUID() != m.GetUID() || old.GetGeneration() != m.GetGeneration() || m.GetGeneration() == 0 {
		return
	}
	var kept []*fleet.GenericMap
	forValues(before, func(values **fleet.GenericMap) { kept = append(kept, *values) })
	forValues(object, func(values **fleet.GenericMap) {
		if len(kept) == 0 { // they were dropped from the cache
			return
		}
		if kept[0].PackedSize() > 0 {
			*values = kept[0]
		}
		kept = kept[1:]
	})
}

// cached returns the version of an object that is in the cache, or nil.
func cached(store cache.Store, object any) any {
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return nil
	}
	before, _, _ := store.GetByKey(key) // the error is always nil
	return before
}

func isSameVersion(before, object any) bool {
	b, _ := meta.Accessor(before)
	o, _ := meta.Accessor(object)
	return b != nil && o != nil && b.GetUID() == o.GetUID() && b.GetResourceVersion() == o.GetResourceVersion()
}

// intern removes managedFields, which are half of a small object, and generateName, which nothing reads after the creation and which an update may
// set to a text of any length. It interns the strings that objects share. Labels and annotations that the
// cached version of the object has too are taken from there: other objects share these strings for longer than the entries of the interner live.
func (w *interner) intern(before, object any) any {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return object
	}
	old, err := meta.Accessor(before)
	if err != nil { // there was none
		old = &metav1.ObjectMeta{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	accessor.SetManagedFields(nil)
	accessor.SetGenerateName("")
	accessor.SetNamespace(w.string(old.GetNamespace()))
	accessor.SetName(w.string(old.GetName()))
	accessor.SetLabels(w.stringMap(old.GetLabels(), accessor.GetLabels()))
	accessor.SetAnnotations(w.stringMap(old.GetAnnotations(), accessor.GetAnnotations()))
	owners := accessor.GetOwnerReferences()
	for i := range owners {
		o := &owners[i]
		o.APIVersion, o.Kind, o.Name, o.UID = w.string(o.APIVersion), w.string(o.Kind), w.string(o.Name), types.UID(w.string(string(o.UID)))
	}
	accessor.SetOwnerReferences(owners)
	for i, finalizers := 0, accessor.GetFinalizers(); i < len(finalizers); i++ {
		finalizers[i] = w.string(finalizers[i])
	}
	switch o := object.(type) {
	case *corev1.Namespace:
		w.kind(&o.TypeMeta)
	case *corev1.ServiceAccount:
		w.kind(&o.TypeMeta)
	case *coordinationv1.Lease:
		w.kind(&o.TypeMeta)
	case *rbacv1.Role:
		w.kind(&o.TypeMeta)
	case *rbacv1.RoleBinding:
		w.kind(&o.TypeMeta)
		w.roleRef(&o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		w.roleRef(&o.RoleRef)
	case *fleet.Cluster:
		w.kind(&o.TypeMeta)
		o.Status.Conditions = w.conditions(o.Status.Conditions)
		o.Spec.ClientID, o.Status.Namespace = w.string(o.Spec.ClientID), w.string(o.Status.Namespace)
		w.agent(&o.Status.Agent)
	case *fleet.ClusterRegistration:
		w.kind(&o.TypeMeta)
		o.Spec.ClientID, o.Status.ClusterName, o.Status.TokenUID = w.string(o.Spec.ClientID), w.string(o.Status.ClusterName), w.string(o.Status.TokenUID)
		o.Status.Conditions = w.conditions(o.Status.Conditions)
	case *fleet.Bundle:
		w.kind(&o.TypeMeta)
		o.Spec.DefaultNamespace, o.Spec.ResourcesDigest = w.string(o.Spec.DefaultNamespace), w.string(o.Spec.ResourcesDigest)
		o.Spec.Helm = lastIfEqual(&w.helm, o.Spec.Helm)
		for i := range o.Spec.Targets {
			target := &o.Spec.Targets[i]
			target.ClusterName, target.ClusterSelector = w.string(target.ClusterName), lastIfEqual(&w.selector, target.ClusterSelector)
		}
		for i := range o.Spec.Resources { // those of a shared cache: the Bundles of all agents have the same 12 kB
			o.Spec.Resources[i].Content = w.string(o.Spec.Resources[i].Content)
		}
		o.Status.Conditions = w.conditions(o.Status.Conditions)
	case *fleet.BundleDeployment:
		w.kind(&o.TypeMeta)
		o.Status.Conditions = w.conditions(o.Status.Conditions)
		o.Spec.DeploymentID, o.Spec.StagedDeploymentID = w.string(o.Spec.DeploymentID), w.string(o.Spec.StagedDeploymentID)
		o.Status.AppliedDeploymentID = w.string(o.Status.AppliedDeploymentID)
		o.Spec.CachedDigests = w.specDigests(o.Spec.CachedDigests)
	}
	return object
}

// agent interns what agents of the same kind report, and the names of objects.
func (w *interner) agent(a *fleet.AgentStatus) {
	a.Namespace, a.Registration = w.string(a.Namespace), w.string(a.Registration)
	a.Version, a.KubernetesVersion, a.Generation = w.string(a.Version), w.string(a.KubernetesVersion), w.string(a.Generation)
	a.Capacity, a.Allocatable = w.resourceList(a.Capacity), w.resourceList(a.Allocatable)
	if a.Hub != nil {
		a.Hub.APIServerURL, a.Hub.APIServerCAHash = w.string(a.Hub.APIServerURL), w.string(a.Hub.APIServerCAHash)
		a.Hub.AgentTLSMode = w.string(a.Hub.AgentTLSMode)
	}
	a.Hub = lastIfEqual(&w.hub, a.Hub)
}

// lastIfEqual returns the value of the last object if it is equal.
func lastIfEqual[T any](last **T, value *T) *T {
	if value == nil {
		return nil
	}
	if *last == nil || !reflect.DeepEqual(*last, value) {
		*last = value
	}
	return *last
}

// specDigests returns one pointer for all equal digests: most Clusters have the same options of a Bundle.
func (w *interner) specDigests(digests *fleet.SpecDigests) *fleet.SpecDigests {
	if digests == nil {
		return nil
	}
	if equal, ok := w.digests[*digests]; ok {
		return equal
	}
	w.reserve(int(unsafe.Sizeof(*digests)))
	w.digests[*digests] = digests
	return digests
}

// kind interns what the decoder sets.
func (w *interner) kind(m *metav1.TypeMeta) {
	m.APIVersion, m.Kind = w.string(m.APIVersion), w.string(m.Kind)
}

func (w *interner) roleRef(ref *rbacv1.RoleRef) {
	ref.APIGroup, ref.Kind, ref.Name = w.string(ref.APIGroup), w.string(ref.Kind), w.string(ref.Name)
}

// conditions returns a slice without spare capacity, which a decoded slice has.
func (w *interner) conditions(all []genericcondition.GenericCondition) []genericcondition.GenericCondition {
	all = slices.Clone(all)
	for i := range all {
		c := &all[i]
		c.Type, c.Status, c.Reason = w.string(c.Type), corev1.ConditionStatus(w.string(string(c.Status))), w.string(c.Reason)
		c.LastUpdateTime, c.LastTransitionTime, c.Message = w.string(c.LastUpdateTime), w.string(c.LastTransitionTime), w.string(c.Message)
	}
	return all
}

// resourceList returns one list for all equal lists. A list takes 700 bytes, and there are few kinds of nodes.
func (w *interner) resourceList(all corev1.ResourceList) corev1.ResourceList {
	var joined strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		quantity := all[name]
		fmt.Fprintf(&joined, "%s=%s ", name, quantity.String())
	}
	if equal, ok := w.resources[joined.String()]; ok {
		return equal
	}
	w.reserve(len(all) * int(unsafe.Sizeof(resource.Quantity{})))
	w.resources[joined.String()] = all
	return all
}

// stringMap returns before if it is equal, and otherwise one map for all equal maps. A map with two short entries takes 300 bytes.
func (w *interner) stringMap(before, all map[string]string) map[string]string {
	switch {
	case len(all) == 0:
		return nil
	case maps.Equal(before, all):
		return before
	}
	sum := w.sum(all)
	if equal, ok := w.maps[sum]; ok && maps.Equal(equal, all) {
		return equal
	}
	size := 0
	for key, value := range all {
		size += len(key) + len(value)
	}
	if size > freeMemory { // no other object has it, and a user could write others all the time
		return all
	}
	interned := make(map[string]string, len(all))
	for key, value := range all {
		interned[w.string(key)] = w.string(value)
	}
	w.reserve(size)
	w.maps[sum] = interned
	return interned
}

// sum does not depend on the order in which a map is iterated.
func (w *interner) sum(m map[string]string) (sum uint64) {
	for key, value := range m {
		sum += maphash.Comparable(w.seed, [2]string{key, value})
	}
	return sum
}

// string returns one string for all equal strings.
func (w *interner) string(s string) string {
	if s == "" {
		return ""
	}
	sum := maphash.String(w.seed, s)
	if known, ok := w.strings[sum]; ok && known == s {
		return known
	}
	w.reserve(len(s))
	w.strings[sum] = s
	return s
}

const (
	// internTime is the time after which the interner is emptied. The initial list of a cache takes less.
	internTime = time.Minute
	// internSize limits the memory of the entries, because anybody may create objects, and agents write texts. It suffices for the strings of
	// 20,000 clusters. internOverhead is the memory of an entry without its texts.
	internSize, internOverhead = 64 << 20, 64
)

// forget drops all entries: periodically, when they are too large, and once the caches are filled. Later objects share the strings of the objects
// that they replace.
func (w *interner) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.empty()
}

func (w *interner) empty() {
	w.internedValues = internedValues{
		strings: map[uint64]string{}, maps: map[uint64]map[string]string{},
		resources: map[string]corev1.ResourceList{}, digests: map[fleet.SpecDigests]*fleet.SpecDigests{},
	}
}

// reserve counts the size of another entry, and empties the interner before if it is full.
func (w *interner) reserve(size int) {
	if w.size > internSize {
		w.empty()
	}
	w.size += size + internOverhead
}
