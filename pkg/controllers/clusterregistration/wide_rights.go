package clusterregistration

import (
	"context"
	"fmt"

	"github.com/rancher/wrangler/v3/pkg/apply"
	wranglername "github.com/rancher/wrangler/v3/pkg/name"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/controllers/contentrole"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/registration"
)

// dropWideRights deletes the bindings by which Fleet's own controllers let the agent read every Content, and every Secret
// beside its BundleDeployments. They are of another object set, so the hub's own does not prune them. It comes after the
// narrow rights are there.
func (p *pass) dropWideRights(ctx context.Context) error {
	if p.DisableBundles {
		return p.dropOwnContents(ctx) // those controllers work with these
	}
	binding, err := p.bindings.Get(p.clusterNamespace(), p.request.Name)
	if err == nil && p.isWide(binding, binding.RoleRef) {
		err = p.Kubernetes.RbacV1().RoleBindings(binding.Namespace).Delete(ctx, binding.Name, asSeen(binding))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting RoleBinding %s/%s, which Fleet made: %w", p.clusterNamespace(), p.request.Name, err)
	}
	wide := wideContentBinding(p.request.Name)
	clusterBinding, err := p.clusterBindings.Get(wide)
	if err == nil && p.isWide(clusterBinding, clusterBinding.RoleRef) && p.mayReadOwn() {
		err = p.Kubernetes.RbacV1().ClusterRoleBindings().Delete(ctx, wide, asSeen(clusterBinding))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting ClusterRoleBinding %s, which Fleet made: %w", wide, err)
	}
	return nil
}

// dropOwnContents deletes the binding by which the agent read the Contents of BundleDeployments that this hub made: nobody
// would take it away again in a quarantine.
func (p *pass) dropOwnContents(ctx context.Context) error {
	binding, err := p.clusterBindings.Get(registration.ContentRoleName(p.clusterNamespace()))
	if err == nil && len(contentrole.ClusterOf(binding)) > 0 {
		err = p.Kubernetes.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, asSeen(binding))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the ClusterRoleBinding to the Contents of %s: %w", p.clusterNamespace(), err)
	}
	return nil
}

// mayReadOwn says whether the agent can do without the right to read every Content: it has that to read those that were
// deployed to it, or there are none.
func (p *pass) mayReadOwn() bool {
	if p.contentRoles.Bound(p.cluster) {
		return true
	}
	deployed, err := p.deployed.List(p.clusterNamespace(), labels.Everything())
	return err == nil && len(deployed) == 0
}

// withWideRights finds the requests that still have wide rights when their Cluster gets its own.
func (h *handler) withWideRights(binding *rbacv1.ClusterRoleBinding) (keys []types.NamespacedName) {
	for _, of := range contentrole.ClusterOf(binding) {
		cluster, err := h.known.Get(of.Namespace, of.Name)
		if err != nil {
			continue
		}
		requests, _ := h.cache.GetByIndex(index.ByClientID, index.Key(of.Namespace, cluster.Spec.ClientID))
		for _, r := range requests {
			if _, err := h.clusterBindings.Get(wideContentBinding(r.Name)); err == nil {
				keys = append(keys, types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
			}
		}
	}
	return keys
}

// wideContentBinding is how Fleet names the ClusterRoleBinding of a request.
func wideContentBinding(request string) string {
	return wranglername.SafeConcatName(request, "content")
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
