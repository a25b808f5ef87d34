package hub

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// transform has the cache of an informer keep no more than the hub needs. first, which may be nil, is applied before. An
// informer of an embedding server that runs already stays as it is.
func (w *interner) transform(informer cache.SharedIndexInformer, first cache.TransformFunc) {
	_ = informer.SetTransform(func(object any) (any, error) {
		if known := unchanged(informer.GetStore(), object); known != nil {
			return known, nil
		}
		if first != nil {
			var err error
			if object, err = first(object); err != nil {
				return nil, err
			}
		}
		return w.trim(object)
	})
}

// unchanged is the object of a cache that is the one that came in, in the same version. After an outage everything is read anew:
// nothing of that is kept in memory twice.
func unchanged(store cache.Store, object any) any {
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return nil
	}
	known, exists, err := store.GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	before, _ := meta.Accessor(known)
	after, _ := meta.Accessor(object)
	if before == nil || after == nil || before.GetUID() != after.GetUID() || before.GetResourceVersion() != after.GetResourceVersion() {
		return nil
	}
	return known
}

// interner keeps equal strings, labels and annotations of different objects in memory once. A registration makes a dozen objects that
// all name its namespace and its account, and all registrations make them with the same labels.
type interner struct {
	mu      sync.Mutex
	strings *recent[string, string]
	maps    *recent[uint64, map[string]string]
	seed    maphash.Seed
	keys    map[string]string
}

func newInterner(clock clock.PassiveClock) *interner {
	return &interner{
		strings: newRecent[string, string](clock), maps: newRecent[uint64, map[string]string](clock),
		seed: maphash.MakeSeed(), keys: map[string]string{},
	}
}

// mostKeys bounds what is kept for ever: whoever makes objects chooses their keys.
const mostKeys = 256

// trim is the transform of an informer. It drops managedFields, which nobody reads and which are half of a small object.
func (w *interner) trim(object any) (any, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return object, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	accessor.SetManagedFields(nil)
	accessor.SetNamespace(w.word(accessor.GetNamespace()))
	accessor.SetName(w.word(accessor.GetName()))
	accessor.SetLabels(w.shared(accessor.GetLabels()))
	accessor.SetAnnotations(w.shared(accessor.GetAnnotations()))
	accessor.SetOwnerReferences(w.sharedOwners(accessor.GetOwnerReferences()))
	switch o := object.(type) {
	case *rbacv1.Role:
		w.shareRules(o.Rules)
	case *rbacv1.ClusterRole:
		w.shareRules(o.Rules)
	case *rbacv1.RoleBinding:
		w.shareBinding(&o.RoleRef, o.Subjects)
	case *rbacv1.ClusterRoleBinding:
		w.shareBinding(&o.RoleRef, o.Subjects)
	case *fleet.Cluster:
		o.Status.Conditions = w.sharedConditions(o.Status.Conditions)
	case *fleet.ClusterRegistration:
		o.Status.Conditions = w.sharedConditions(o.Status.Conditions)
	case *fleet.Bundle:
		o.Status.Conditions = w.sharedConditions(o.Status.Conditions)
	case *fleet.BundleDeployment:
		o.Status.Conditions = w.sharedConditions(o.Status.Conditions)
		o.Spec.DeploymentID, o.Spec.StagedDeploymentID = w.word(o.Spec.DeploymentID), w.word(o.Spec.StagedDeploymentID)
		o.Status.AppliedDeploymentID = w.word(o.Status.AppliedDeploymentID)
	}
	return object, nil
}

// word is the one copy of a string.
func (w *interner) word(s string) string {
	if s == "" {
		return ""
	}
	if known, ok := w.strings.get(s); ok {
		return known
	}
	w.strings.add(s, s)
	return s
}

// key is the one copy of a key of labels, which is held: it comes again with the next registration, however late.
func (w *interner) key(s string) string {
	known, ok := w.keys[s]
	switch {
	case ok:
		return known
	case len(w.keys) >= mostKeys:
		return w.word(s)
	}
	w.keys[s] = s
	return s
}

// shared is the one map of those that say the same. A map with two short entries takes 300 bytes.
func (w *interner) shared(all map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	sum := w.sum(all)
	if equal, ok := w.maps.get(sum); ok && maps.Equal(equal, all) {
		return equal
	}
	shared := make(map[string]string, len(all))
	for key, value := range all {
		shared[w.key(key)] = w.word(value)
	}
	w.maps.add(sum, shared)
	return shared
}

// sum is the same in whichever order a map tells its entries.
func (w *interner) sum(m map[string]string) (sum uint64) {
	for key, value := range m {
		sum += maphash.Comparable(w.seed, [2]string{key, value})
	}
	return sum
}

func (w *interner) sharedOwners(owners []metav1.OwnerReference) []metav1.OwnerReference {
	for i := range owners {
		o := &owners[i]
		o.APIVersion, o.Kind, o.Name, o.UID = w.word(o.APIVersion), w.word(o.Kind), w.word(o.Name), types.UID(w.word(string(o.UID)))
	}
	return owners
}

func (w *interner) shareRules(rules []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, list := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames} {
			for i := range list {
				list[i] = w.word(list[i])
			}
		}
	}
}

func (w *interner) shareBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	ref.APIGroup, ref.Kind, ref.Name = w.word(ref.APIGroup), w.word(ref.Kind), w.word(ref.Name)
	for i := range subjects {
		s := &subjects[i]
		s.Kind, s.APIGroup, s.Name, s.Namespace = w.word(s.Kind), w.word(s.APIGroup), w.word(s.Name), w.word(s.Namespace)
	}
}

// sharedConditions are as many as there are: a slice that was decoded has room for more.
func (w *interner) sharedConditions(all []genericcondition.GenericCondition) []genericcondition.GenericCondition {
	all = slices.Clone(all)
	for i := range all {
		c := &all[i]
		c.Type, c.Status, c.Reason = w.word(c.Type), corev1.ConditionStatus(w.word(string(c.Status))), w.word(c.Reason)
		c.LastUpdateTime, c.LastTransitionTime, c.Message = w.word(c.LastUpdateTime), w.word(c.LastTransitionTime), w.word(c.Message)
	}
	return all
}
