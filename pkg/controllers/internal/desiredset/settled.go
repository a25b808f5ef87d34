package desiredset

import (
	"slices"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// byHash is the index that wrangler adds to each cache it prunes.
const byHash = "wrangler.byObjectSetHash"

// settled reports whether the caches have the objects of a set as they are wanted, and no others of the set. This is so in most passes.
func (s Sets) settled(set marks, owner runtime.Object, objects []runtime.Object) bool {
	missing, rest := s.missing(set, owner, objects)
	return rest && len(missing) == 0
}

// missing returns the objects of a set that the caches do not have, and whether they have the rest as wanted and no others.
func (s Sets) missing(set marks, owner runtime.Object, objects []runtime.Object) (missing []runtime.Object, rest bool) {
	existing, known := s.existing(set.labels[apply.LabelHash])
	holder, err := meta.Accessor(owner)
	if !known || err != nil {
		return nil, false
	}
	for _, wanted := range objects {
		if !slices.ContainsFunc(existing, func(e metav1.Object) bool { return set.isAs(e, wanted, holder) }) {
			missing = append(missing, wanted)
		}
	}
	return missing, len(existing) == len(objects)-len(missing)
}

// isAs reports whether an object of the set is as wanted.
func (m marks) isAs(existing metav1.Object, wanted runtime.Object, owner metav1.Object) bool {
	return isAs(existing, wanted) && carries(existing, m.labels, m.annotations) && isOwned(existing, owner)
}

func (s Sets) existing(hash string) (all []metav1.Object, known bool) {
	for _, indexer := range s.indexers {
		found, err := indexer.ByIndex(byHash, hash)
		if err != nil {
			return nil, false
		}
		for _, object := range found {
			m, err := meta.Accessor(object)
			if err != nil {
				return nil, false
			}
			all = append(all, m)
		}
	}
	return all, true
}

// isAs compares the fields that the objects of a set may have.
func isAs(existing metav1.Object, wanted runtime.Object) bool {
	switch w := wanted.(type) {
	case *corev1.ServiceAccount:
		e, ok := existing.(*corev1.ServiceAccount)
		return ok && isNamed(e, w)
	case *rbacv1.Role:
		e, ok := existing.(*rbacv1.Role)
		return ok && isNamed(e, w) && equality.Semantic.DeepEqual(e.Rules, w.Rules)
	case *rbacv1.RoleBinding:
		e, ok := existing.(*rbacv1.RoleBinding)
		return ok && isNamed(e, w) && e.RoleRef == w.RoleRef && equality.Semantic.DeepEqual(e.Subjects, w.Subjects)
	case *rbacv1.ClusterRoleBinding:
		e, ok := existing.(*rbacv1.ClusterRoleBinding)
		return ok && isNamed(e, w) && e.RoleRef == w.RoleRef && equality.Semantic.DeepEqual(e.Subjects, w.Subjects)
	}
	return false
}

func isNamed(existing, wanted metav1.Object) bool {
	return existing.GetName() == wanted.GetName() && existing.GetNamespace() == wanted.GetNamespace() &&
		existing.GetDeletionTimestamp() == nil && carries(existing, wanted.GetLabels(), wanted.GetAnnotations())
}

func carries(object metav1.Object, labels, annotations map[string]string) bool {
	return includes(object.GetLabels(), labels) && includes(object.GetAnnotations(), annotations)
}

func includes(has, wanted map[string]string) bool {
	for key, value := range wanted {
		if v, ok := has[key]; !ok || v != value {
			return false
		}
	}
	return true
}

// isOwned looks for the owner reference that wrangler sets on what is in the owner's namespace.
func isOwned(object, owner metav1.Object) bool {
	return object.GetNamespace() != owner.GetNamespace() ||
		slices.ContainsFunc(object.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == owner.GetUID() })
}
