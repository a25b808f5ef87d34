// Package contentrole keeps one ClusterRole, and its binding, for each Cluster to which something was deployed: it lets the
// Cluster's agent read the Contents that its BundleDeployments name, and no other. Contents are cluster-scoped, so no Role can
// say that. Both go with the cluster namespace, which owns them; the hub needs no right to delete ClusterRoles.
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
	fresh      expectations.Expectations
	made       *expectations.Expectations // ClusterRoles
	bound      *expectations.Expectations // and their bindings
}

// New asks for the caches it needs, so call it while controllers are registered.
func New(c *app.Context) *Roles {
	return &Roles{
		client: c.Kubernetes, cache: c.RBAC.ClusterRole().Cache(), bindings: c.RBAC.ClusterRoleBinding().Cache(),
		namespaces: c.Core.Namespace().Cache(), made: expectations.New(c.Clock), bound: expectations.New(c.Clock),
	}
}

// Allow lets the agent of a Cluster read these Contents, in any order, and no other. It returns a *desiredset.ForeignError where
// somebody else's ClusterRole or ClusterRoleBinding has the name.
func (r *Roles) Allow(ctx context.Context, cluster *fleet.Cluster, contents []string) error {
	if err := r.name(ctx, cluster, contents); err != nil {
		return err
	}
	return r.bind(ctx, cluster)
}

// name makes the ClusterRole name the Contents. It comes before the binding: one to a ClusterRole that is not there is refused.
func (r *Roles) name(ctx context.Context, cluster *fleet.Cluster, contents []string) error {
	rules := rulesFor(contents)
	role, err := r.ensure(ctx, cluster, rules)
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
	r.fresh.Wrote(latest)
	return nil
}

func rulesFor(contents []string) []rbacv1.PolicyRule {
	if len(contents) == 0 {
		return nil // a rule without names would be one for all
	}
	names := slices.Clone(contents)
	slices.Sort(names)
	return []rbacv1.PolicyRule{{
		Verbs: []string{"get"}, APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"contents"}, ResourceNames: slices.Compact(names),
	}}
}

// ensure returns the ClusterRole as it is, or as it was made now.
func (r *Roles) ensure(ctx context.Context, cluster *fleet.Cluster, rules []rbacv1.PolicyRule) (*rbacv1.ClusterRole, error) {
	name := registration.ContentRoleName(registration.ClusterNamespace(cluster.Namespace, cluster.Name))
	role, err := r.cache.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		role, err = r.unseen(ctx, cluster, name, rules)
	case err == nil:
		r.made.Observed(name)
		if r.fresh.IsStale(role) {
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

// unseen is the ClusterRole that the cache does not have: made a moment ago, or yet to be made. One that was made may be gone
// before the cache has seen it.
func (r *Roles) unseen(ctx context.Context, cluster *fleet.Cluster, name string, rules []rbacv1.PolicyRule) (*rbacv1.ClusterRole, error) {
	if r.made.IsExpected(name) {
		role, err := r.client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return role, err
		}
	}
	return r.create(ctx, cluster, name, rules)
}

// create makes the ClusterRole. One that exists already, but not in the cache of what is ours, is read to see whose it is.
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
		r.made.Expect(name)
	}
	return made, err
}

// namespace is read where the cache does not have it yet: it may have been made a moment ago.
func (r *Roles) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	namespace, err := r.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		return r.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
	return namespace, err
}

// Unseen says whether the binding of a Cluster was made and is not in the cache yet. It may be gone before it ever is, and
// then nothing tells, so that Allow has to be called again after expectations.Timeout.
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

// ClusterOf is the Cluster a ClusterRole or its binding was made for; none, for one that is not of this package.
func ClusterOf(object metav1.Object) []types.NamespacedName {
	a := object.GetAnnotations()
	of := types.NamespacedName{Namespace: a[fleet.ClusterNamespaceAnnotation], Name: a[fleet.ClusterAnnotation]}
	if object.GetLabels()[fleet.ManagedLabel] != fleet.ManagedValue || of.Namespace == "" || of.Name == "" ||
		registration.ContentRoleName(registration.ClusterNamespace(of.Namespace, of.Name)) != object.GetName() {
		return nil
	}
	return []types.NamespacedName{of}
}
