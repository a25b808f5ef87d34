package controllers

import (
	"slices"
	"sync"
	"unique"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// slim has the caches of the informers keep no more than they must.
func (w *words) slim(informers ...cache.SharedIndexInformer) {
	for _, informer := range informers {
		setTransform(informer, w.trim)
	}
}

// setTransform leaves an informer as it is that runs already, which is one of an embedding server: that is the error.
func setTransform(informer cache.SharedIndexInformer, transform cache.TransformFunc) {
	_ = informer.SetTransform(transform)
}

// words keep equal strings of different objects in memory once. A registration makes a dozen objects that all name its namespace
// and its account, and all registrations make them with the same labels. The zero words are ready to use.
type words struct {
	mu   sync.Mutex
	keys map[string]unique.Handle[string]
	maps recentMaps
}

// mostKeys bounds what is kept for ever: whoever makes objects chooses their keys.
const mostKeys = 256

// trim is the transform of an informer. It drops managedFields, which nobody reads and which are half of a small object.
func (w *words) trim(object any) (any, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return object, nil
	}
	accessor.SetManagedFields(nil)
	accessor.SetNamespace(word(accessor.GetNamespace()))
	accessor.SetLabels(w.shared(accessor.GetLabels()))
	accessor.SetAnnotations(w.shared(accessor.GetAnnotations()))
	owners := accessor.GetOwnerReferences()
	for i := range owners {
		shareOwner(&owners[i])
	}
	accessor.SetOwnerReferences(owners)
	switch o := object.(type) {
	case *rbacv1.Role:
		shareRules(o.Rules)
	case *rbacv1.ClusterRole:
		shareRules(o.Rules)
	case *rbacv1.RoleBinding:
		shareBinding(&o.RoleRef, o.Subjects)
	case *rbacv1.ClusterRoleBinding:
		shareBinding(&o.RoleRef, o.Subjects)
	case *fleet.Cluster:
		o.Status.Conditions = sharedConditions(o.Status.Conditions)
	case *fleet.ClusterRegistration:
		o.Status.Conditions = sharedConditions(o.Status.Conditions)
	case *fleet.Bundle:
		o.Status.Conditions = sharedConditions(o.Status.Conditions)
	case *fleet.BundleDeployment:
		o.Status.Conditions = sharedConditions(o.Status.Conditions)
	}
	return object, nil
}

// after is a transform that follows another one.
func (w *words) after(first cache.TransformFunc) cache.TransformFunc {
	return func(object any) (any, error) {
		object, err := first(object)
		if err != nil {
			return nil, err
		}
		return w.trim(object)
	}
}

// word is the one copy of a string. What nobody holds any more is forgotten with the next collection of garbage, so that objects
// which come one soon after the other share it, as those of a registration do, and those of a list.
func word(s string) string { return unique.Make(s).Value() }

// key is the one copy of a key of labels, which is held: it comes again with the next registration, however late.
func (w *words) key(s string) string {
	handle, known := w.keys[s]
	switch {
	case known:
		return handle.Value()
	case len(w.keys) >= mostKeys:
		return word(s)
	case w.keys == nil:
		w.keys = map[string]unique.Handle[string]{}
	}
	handle = unique.Make(s)
	w.keys[handle.Value()] = handle
	return handle.Value()
}

func (w *words) shared(all map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if equal := w.maps.like(all); equal != nil {
		return equal
	}
	shared := make(map[string]string, len(all))
	for key, value := range all {
		shared[w.key(key)] = word(value)
	}
	w.maps.add(shared)
	return shared
}

func shareOwner(o *metav1.OwnerReference) {
	o.APIVersion, o.Kind, o.Name = word(o.APIVersion), word(o.Kind), word(o.Name)
}

func shareRules(rules []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, list := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames} {
			for i := range list {
				list[i] = word(list[i])
			}
		}
	}
}

func shareBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	ref.APIGroup, ref.Kind, ref.Name = word(ref.APIGroup), word(ref.Kind), word(ref.Name)
	for i := range subjects {
		s := &subjects[i]
		s.Kind, s.APIGroup, s.Name, s.Namespace = word(s.Kind), word(s.APIGroup), word(s.Name), word(s.Namespace)
	}
}

// sharedConditions are as many as there are: a slice that was decoded has room for more.
func sharedConditions(all []genericcondition.GenericCondition) []genericcondition.GenericCondition {
	all = slices.Clone(all)
	for i := range all {
		c := &all[i]
		c.Type, c.Status, c.Reason = word(c.Type), corev1.ConditionStatus(word(string(c.Status))), word(c.Reason)
		c.LastUpdateTime, c.LastTransitionTime, c.Message = word(c.LastUpdateTime), word(c.LastTransitionTime), word(c.Message)
	}
	return all
}
