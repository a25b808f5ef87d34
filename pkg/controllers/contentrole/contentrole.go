// Package contentrole manages a ClusterRole and its binding for each Cluster with BundleDeployments. They let the Cluster's agent read
// the Contents that these BundleDeployments name, and no other. Contents are cluster-scoped, so a Role cannot grant that. The cluster
// namespace owns both objects, so they are deleted with it and the hub needs no right to delete ClusterRoles.
package contentrole

import (
	"context"
	"fmt"
	"slices"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Roles are the ClusterRoles of all Clusters.
type Roles struct {
	client     kubernetes.Interface
	cache      rbaccontrollers.ClusterRoleCache
	bindings   rbaccontrollers.ClusterRoleBindingCache
	namespaces corecontrollers.NamespaceCache
	written    expectations.Expectations  // versions of ClusterRoles
	created    *expectations.Expectations // ClusterRoles, by name
	bound      *expectations.Expectations // ClusterRoleBindings, by name
}

// New registers the caches it needs, so it is called while controllers are registered.
func New(c *app.Context) *Roles {
	return &Roles{
		client: c.Kubernetes, cache: c.RBAC.ClusterRole().Cache(), bindings: c.RBAC.ClusterRoleBinding().Cache(),
		namespaces: c.Core.Namespace().Cache(), created: expectations.New(c.Clock), bound: expectations.New(c.Clock),
	}
}

// Allow lets the agent of a Cluster read these Contents and no other. It returns a *desiredset.ForeignError if a ClusterRole or
// ClusterRoleBinding of that name belongs to somebody else.
func (r *Roles) Allow(ctx context.Context, cluster *fleet.Cluster, contents []string) error {
	if err := r.ensureRole(ctx, cluster, contents); err != nil {
		return err
	}
	return r.bind(ctx, cluster)
}

// ensureRole lets the ClusterRole name the Contents. It comes before the binding: the API server rejects a binding to a ClusterRole
// that does not exist.
func (r *Roles) ensureRole(ctx context.Context, cluster *fleet.Cluster, contents []string) error {
	rules := rulesFor(contents)
	role, err := r.roleOf(ctx, cluster, rules)
	if err != nil {
		return err
	}
	changed := role.DeepCopy()
	changed.Rules = rules
	if namespace, err := r.namespaces.Get(registration.ClusterNamespace(cluster.Namespace, cluster.Name)); err == nil {
		changed.OwnerReferences = ownedBy(namespace)
	}
	if equality.Semantic.DeepEqual(role, changed) {
		return nil
	}
	latest, err := r.client.RbacV1().ClusterRoles().Update(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("changing ClusterRole %s: %w", role.Name, err)
	}
	r.written.Wrote(latest)
	return nil
}

func rulesFor(contents []string) []rbacv1.PolicyRule {
	if len(contents) == 0 {
		return nil // a rule without names would grant all Contents
	}
	names := slices.Clone(contents)
	slices.Sort(names)
	return []rbacv1.PolicyRule{{
		Verbs: []string{"get"}, APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"contents"}, ResourceNames: slices.Compact(names),
	}}
}

// roleOf returns the latest ClusterRole, and creates it if there is none.
func (r *Roles) roleOf(ctx context.Context, cluster *fleet.Cluster, rules []rbacv1.PolicyRule) (*rbacv1.ClusterRole, error) {
	name := registration.ContentRoleName(registration.ClusterNamespace(cluster.Namespace, cluster.Name))
	role, err := r.cache.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		role, err = r.uncachedRole(ctx, cluster, name, rules)
	case err == nil:
		r.created.Observed(name)
		if r.written.IsStale(role) {
			role, err = r.client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ClusterRole %s: %w", name, err)
	}
	if !isFor(role, cluster) {
		return nil, &desiredset.ForeignError{Kind: roleKind, Name: name}
	}
	return role, nil
}

// uncachedRole returns a ClusterRole that the cache does not show: it was created a moment ago, or is created now. A ClusterRole may be
// deleted before the cache shows it.
func (r *Roles) uncachedRole(ctx context.Context, cluster *fleet.Cluster, name string, rules []rbacv1.PolicyRule) (*rbacv1.ClusterRole, error) {
	if r.created.IsExpected(name) {
		role, err := r.client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return role, err
		}
	}
	return r.create(ctx, cluster, name, rules)
}

// create creates the ClusterRole. If it exists, but not in the cache of labelled objects, it is read to see whom it belongs to.
func (r *Roles) create(ctx context.Context, cluster *fleet.Cluster, name string, rules []rbacv1.PolicyRule) (*rbacv1.ClusterRole, error) {
	namespace, err := r.namespace(ctx, registration.ClusterNamespace(cluster.Namespace, cluster.Name))
	if err != nil {
		return nil, err
	}
	roles := r.client.RbacV1().ClusterRoles()
	made, err := roles.Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metaOf(cluster, name, namespace),
		Rules:      rules,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return roles.Get(ctx, name, metav1.GetOptions{})
	}
	if err == nil {
		r.created.Expect(name)
	}
	return made, err
}

// namespace asks the API server for a namespace that the cache does not show: it may have been created a moment ago.
func (r *Roles) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	namespace, err := r.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		return r.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
	return namespace, err
}

// Unseen reports whether the binding of a Cluster was created and the cache does not show it yet. If it is deleted before that, there
// is no event, so the caller repeats Allow after expectations.Timeout.
func (r *Roles) Unseen(cluster *fleet.Cluster) bool {
	name := registration.ContentRoleName(registration.ClusterNamespace(cluster.Namespace, cluster.Name))
	_, err := r.bindings.Get(name)
	return apierrors.IsNotFound(err) && r.bound.IsExpected(name)
}

func metaOf(cluster *fleet.Cluster, name string, namespace *corev1.Namespace) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
		Annotations: map[string]string{
			fleet.ClusterAnnotation:          cluster.Name,
			fleet.ClusterNamespaceAnnotation: cluster.Namespace,
		},
		OwnerReferences: ownedBy(namespace),
	}
}

func ownedBy(namespace *corev1.Namespace) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: namespace.Name, UID: namespace.UID}}
}

func isFor(object metav1.Object, cluster *fleet.Cluster) bool {
	of := ClusterOf(object)
	return len(of) == 1 && of[0] == types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
}

// ClusterOf returns the Cluster that a ClusterRole or its binding belongs to; none for an object that is not of this package.
func ClusterOf(object metav1.Object) []types.NamespacedName {
	a := object.GetAnnotations()
	of := types.NamespacedName{Namespace: a[fleet.ClusterNamespaceAnnotation], Name: a[fleet.ClusterAnnotation]}
	if object.GetLabels()[fleet.ManagedLabel] != fleet.ManagedValue || of.Namespace == "" || of.Name == "" ||
		registration.ContentRoleName(registration.ClusterNamespace(of.Namespace, of.Name)) != object.GetName() {
		return nil
	}
	return []types.NamespacedName{of}
}
