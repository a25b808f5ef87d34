package contentrole

import (
	"context"
	"encoding/json"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	roleKind    = "ClusterRole"
	bindingKind = "ClusterRoleBinding"

	accountsOf = "system:serviceaccounts:" // the group of all ServiceAccounts of a namespace
)

// readers are all ServiceAccounts of the cluster namespace, in which only the hub creates objects: for a while, an agent may hold two
// credentials, and both have the rights of its Cluster.
func readers(namespace string) []rbacv1.Subject {
	return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: accountsOf + namespace}}
}

// bind binds the ClusterRole of a Cluster to its agent.
func (r *Roles) bind(ctx context.Context, cluster *fleet.Cluster) error {
	home := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	name := registration.ContentRoleName(home)
	binding, err := r.bindings.Get(name)
	if apierrors.IsNotFound(err) {
		if r.bound.IsExpected(name) {
			return nil
		}
		binding, err = r.createBinding(ctx, cluster, name, home)
	} else {
		r.bound.Observed(name)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", bindingKind, name, err)
	case !isFor(binding, cluster) || binding.RoleRef.Kind != roleKind || binding.RoleRef.Name != name:
		return &desiredset.ForeignError{Kind: bindingKind, Name: name}
	case equality.Semantic.DeepEqual(binding.Subjects, readers(home)):
		return nil
	}
	return r.repairBinding(ctx, name, readers(home))
}

// createBinding reads a binding that exists, but is not in the cache of labelled objects.
func (r *Roles) createBinding(ctx context.Context, cluster *fleet.Cluster, name, home string) (*rbacv1.ClusterRoleBinding, error) {
	namespace, err := r.namespace(ctx, home)
	if err != nil {
		return nil, err
	}
	bindings := r.client.RbacV1().ClusterRoleBindings()
	made, err := bindings.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metaOf(cluster, name, namespace),
		Subjects:   readers(home),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: roleKind, Name: name},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return bindings.Get(ctx, name, metav1.GetOptions{})
	}
	if err == nil {
		r.bound.Expect(name)
	}
	return made, err
}

func (r *Roles) repairBinding(ctx context.Context, name string, subjects []rbacv1.Subject) error {
	patch, err := json.Marshal(map[string]any{"subjects": subjects})
	if err != nil {
		return err
	}
	_, err = r.client.RbacV1().ClusterRoleBindings().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("changing %s %s: %w", bindingKind, name, err)
	}
	return nil
}

// Forbid withdraws from the agent of a Cluster the right to read any Content, until Allow grants it again.
func (r *Roles) Forbid(ctx context.Context, cluster *fleet.Cluster) error {
	name := registration.ContentRoleName(registration.ClusterNamespace(cluster.Namespace, cluster.Name))
	binding, err := r.bindings.Get(name)
	switch {
	case apierrors.IsNotFound(err) && r.bound.IsExpected(name): // created a moment ago
		err = r.client.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})
	case apierrors.IsNotFound(err) || err == nil && !isFor(binding, cluster):
		return nil
	case err == nil:
		err = r.client.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &binding.UID}})
	}
	r.bound.Observed(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s %s: %w", bindingKind, name, err)
	}
	return nil
}

// Bound reports whether the agent of a Cluster has the right to read its Contents.
func (r *Roles) Bound(cluster *fleet.Cluster) bool {
	binding, err := r.bindings.Get(registration.ContentRoleName(registration.ClusterNamespace(cluster.Namespace, cluster.Name)))
	return err == nil && isFor(binding, cluster)
}
