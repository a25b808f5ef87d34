package clusterregistration

import (
	"context"
	"fmt"

	"github.com/rancher/wrangler/v3/pkg/apply"
	wranglername "github.com/rancher/wrangler/v3/pkg/name"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/registration"
)

// dropWideRights deletes the bindings by which Fleet's own controllers let the agent read every Content, and every Secret
// beside its BundleDeployments. They are of another object set, so the hub's own does not prune them. It comes after the
// narrow rights are there.
func (p *pass) dropWideRights(ctx context.Context) error {
	if p.DisableBundles {
		return nil // those controllers work with these
	}
	binding, err := p.bindings.Get(p.clusterNamespace(), p.request.Name)
	if err == nil && p.isWide(binding, binding.RoleRef) {
		err = p.Kubernetes.RbacV1().RoleBindings(binding.Namespace).Delete(ctx, binding.Name, asSeen(binding))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting RoleBinding %s/%s, which Fleet made: %w", p.clusterNamespace(), p.request.Name, err)
	}
	wide := wranglername.SafeConcatName(p.request.Name, "content")
	clusterBinding, err := p.clusterBindings.Get(wide)
	if err == nil && p.isWide(clusterBinding, clusterBinding.RoleRef) {
		err = p.Kubernetes.RbacV1().ClusterRoleBindings().Delete(ctx, wide, asSeen(clusterBinding))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting ClusterRoleBinding %s, which Fleet made: %w", wide, err)
	}
	return nil
}

// isWide says whether a binding was made for this request, and gives one of the ClusterRoles that all agents shared.
func (p *pass) isWide(binding metav1.Object, given rbacv1.RoleRef) bool {
	a := binding.GetAnnotations()
	return given.Kind == "ClusterRole" && (given.Name == registration.ClusterRoleBundleDeployment || given.Name == registration.ClusterRoleContent) &&
		a[apply.LabelGVK] == requestKind.String() && a[apply.LabelNamespace] == p.request.Namespace && a[apply.LabelName] == p.request.Name
}

func asSeen(object metav1.Object) metav1.DeleteOptions {
	uid := object.GetUID()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}
