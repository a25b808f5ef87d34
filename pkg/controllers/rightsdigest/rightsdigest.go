// Package rightsdigest lets the caches of the hub keep a digest of what a role or a binding grants. The hub needs only whether that is as
// wanted, and the rules of an agent take more memory than the rest of its Role.
package rightsdigest

import (
	"crypto/sha256"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// All objects in the caches share one of these lists, by which Reduce recognizes them. No wanted object has such a list, so if the digests differ, a patch
// that is computed from a cached object has the whole list of the wanted object.
var (
	droppedRules    = []rbacv1.PolicyRule{{}}
	droppedSubjects = []rbacv1.Subject{{}}
)

// Reduce replaces the rules of a role, or the subjects of a binding, by a digest. Other objects stay, and one that was reduced before: an informer
// transforms each object of its first list twice. The digest is in the field selfLink, which the API server does not store. A binding keeps its
// roleRef, whose texts other objects have too.
func Reduce(object metav1.Object) {
	switch o := object.(type) {
	case *rbacv1.Role:
		replace(o, &o.Rules, droppedRules)
	case *rbacv1.ClusterRole:
		replace(o, &o.Rules, droppedRules)
		o.AggregationRule = nil
	case *rbacv1.RoleBinding:
		replace(o, &o.Subjects, droppedSubjects)
	case *rbacv1.ClusterRoleBinding:
		replace(o, &o.Subjects, droppedSubjects)
	}
}

func replace[T any](object metav1.Object, list *[]T, dropped []T) {
	if len(*list) == 1 && &(*list)[0] == &dropped[0] {
		return
	}
	sum := sumOf(object)
	object.SetSelfLink(string(sum[:]))
	*list = dropped
}

// Equal reports whether a role or a binding, from a cache or from the API server, grants the same as the wanted one, which is not reduced.
func Equal(object, wanted metav1.Object) bool {
	sum := sumOf(wanted)
	if digest := object.GetSelfLink(); digest != "" {
		return digest == string(sum[:])
	}
	return sumOf(object) == sum
}

// sumOf returns the digest of what a role or a binding grants, in an encoding in which an empty list is the same as none.
func sumOf(object metav1.Object) [sha256.Size]byte {
	var grants interface{ Marshal() ([]byte, error) }
	switch o := object.(type) {
	case *rbacv1.Role:
		grants = &rbacv1.Role{Rules: o.Rules}
	case *rbacv1.ClusterRole:
		grants = &rbacv1.ClusterRole{Rules: o.Rules, AggregationRule: o.AggregationRule}
	case *rbacv1.RoleBinding:
		grants = &rbacv1.RoleBinding{Subjects: o.Subjects, RoleRef: o.RoleRef}
	case *rbacv1.ClusterRoleBinding:
		grants = &rbacv1.ClusterRoleBinding{Subjects: o.Subjects, RoleRef: o.RoleRef}
	default:
		panic(fmt.Sprintf("%T grants nothing", object))
	}
	data, err := grants.Marshal()
	if err != nil {
		panic(fmt.Sprintf("what was decoded always marshals: %v", err))
	}
	return sha256.Sum256(data)
}
