package agentrole

import (
	"context"
	"encoding/json"
	"errors"
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

const (
	roleKind    = "ClusterRole"
	bindingKind = "ClusterRoleBinding"
)

// ReadRights manages, for each Cluster with BundleDeployments, the rights of its agent to read what these BundleDeployments name, and nothing
// else. Contents are cluster-scoped, so a ClusterRole grants the right to read them. The cluster namespace owns the ClusterRole and its
// binding, so they are deleted with it and the hub needs no right to delete ClusterRoles. A Role in the cluster namespace grants the right
// to read Secrets and ConfigMaps.
type ReadRights struct {
	client     kubernetes.Interface
	roles      rbaccontrollers.ClusterRoleCache
	bindings   rbaccontrollers.ClusterRoleBindingCache
	namespaces corecontrollers.NamespaceCache
	written    expectations.Expectations  // versions of ClusterRoles
	created    *expectations.Expectations // ClusterRoles, by name
	bound      *expectations.Expectations // ClusterRoleBindings, by name
	objects    desiredset.Sets            // the Roles and RoleBindings of AllowObjects
}

// NewReadRights registers its caches, so call it while the controllers are registered.
func NewReadRights(c *app.Context) *ReadRights {
	return &ReadRights{
		client: c.Kubernetes, roles: c.RBAC.ClusterRole().Cache(), bindings: c.RBAC.ClusterRoleBinding().Cache(),
		namespaces: c.Core.Namespace().Cache(), created: expectations.New(c.Clock), bound: expectations.New(c.Clock),
		objects: desiredset.New(c.Kubernetes, c.Core.ServiceAccount().Informer(), c.Coordination.Lease().Informer(), c.RBAC.Role().Informer(), c.RBAC.RoleBinding().Informer(),
			c.RBAC.ClusterRoleBinding().Informer()),
	}
}

// Allow lets the agent of a Cluster read these Contents and no other. It returns a *desiredset.ForeignError if a ClusterRole or
// ClusterRoleBinding of that name belongs to somebody else.
func (r *ReadRights) Allow(ctx context.Context, cluster *fleet.Cluster, contents []string) error {
	name, rules := nameFor(cluster), rulesFor(contents)

	// The ClusterRole comes before the binding: the API server rejects a binding to a ClusterRole that does not exist.
	role, err := r.ensureRole(ctx, cluster, rules)
	if err != nil {
		return fmt.Errorf("%s %s: %w", roleKind, name, err)
	}
	if !isFor(role, cluster) {
		return &desiredset.ForeignError{Kind: roleKind, Name: name}
	}
	changed := role.DeepCopy()
	changed.Rules = rules
	if namespace, err := r.namespaces.Get(namespaceOf(cluster)); err == nil {
		changed.OwnerReferences = ownedBy(namespace)
	}
	if !equality.Semantic.DeepEqual(role, changed) {
		latest, err := r.client.RbacV1().ClusterRoles().Update(ctx, changed, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("changing %s %s: %w", roleKind, name, err)
		}
		r.written.Wrote(latest)
	}

	binding, err := r.ensureBinding(ctx, cluster)
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", bindingKind, name, err)
	case binding == nil:
		return nil
	case !isFor(binding, cluster) || binding.RoleRef.Kind != roleKind || binding.RoleRef.Name != name:
		return &desiredset.ForeignError{Kind: bindingKind, Name: name}
	case equality.Semantic.DeepEqual(binding.Subjects, readersFor(cluster)):
		return nil
	}
	patch, err := json.Marshal(map[string]any{"subjects": readersFor(cluster)})
	if err != nil {
		return err
	}
	if _, err := r.client.RbacV1().ClusterRoleBindings().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("changing %s %s: %w", bindingKind, name, err)
	}
	return nil
}

// Forbid withdraws from the agent of a Cluster the right to read any Content and any Secret or ConfigMap, until Allow and AllowObjects
// grant it again.
func (r *ReadRights) Forbid(ctx context.Context, cluster *fleet.Cluster) error {
	return errors.Join(r.forbidContents(ctx, cluster), r.AllowObjects(ctx, cluster, nil, nil))
}

func (r *ReadRights) forbidContents(ctx context.Context, cluster *fleet.Cluster) error {
	name := nameFor(cluster)
	options := metav1.DeleteOptions{}
	binding, err := r.bindings.Get(name)
	switch {
	case apierrors.IsNotFound(err) && r.bound.IsExpected(name): // created a moment ago
	case apierrors.IsNotFound(err) || err == nil && !isFor(binding, cluster):
		return nil
	case err != nil:
		return err
	default:
		options.Preconditions = metav1.NewUIDPreconditions(string(binding.UID))
	}
	err = r.client.RbacV1().ClusterRoleBindings().Delete(ctx, name, options)
	r.bound.Observed(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s %s: %w", bindingKind, name, err)
	}
	return nil
}

// Bound reports whether the agent of a Cluster has the right to read its Contents.
func (r *ReadRights) Bound(cluster *fleet.Cluster) bool {
	binding, err := r.bindings.Get(nameFor(cluster))
	return err == nil && isFor(binding, cluster)
}

// BindingUncached reports whether the binding of a Cluster was created and is not in the cache yet. If it is deleted before the cache
// contains it, there is no event, so the caller repeats Allow after expectations.Timeout.
func (r *ReadRights) BindingUncached(cluster *fleet.Cluster) bool {
	_, err := r.bindings.Get(nameFor(cluster))
	return apierrors.IsNotFound(err) && r.bound.IsExpected(nameFor(cluster))
}

// ensureRole returns the latest ClusterRole of that name, whosever it is. It creates the ClusterRole if there is none.
func (r *ReadRights) ensureRole(ctx context.Context, cluster *fleet.Cluster, rules []rbacv1.PolicyRule) (*rbacv1.ClusterRole, error) {
	name, client := nameFor(cluster), r.client.RbacV1().ClusterRoles()
	role, err := r.roles.Get(name)
	if err == nil {
		r.created.Observed(name)
	}
	if err == nil && r.written.IsStale(role) || apierrors.IsNotFound(err) && r.created.IsExpected(name) {
		role, err = client.Get(ctx, name, metav1.GetOptions{})
	}
	if !apierrors.IsNotFound(err) {
		return role, err
	}
	meta, err := r.metaFor(ctx, cluster)
	if err != nil {
		return nil, err
	}
	role, err = client.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // the cache has only objects with our label
		return client.Get(ctx, name, metav1.GetOptions{})
	}
	if err == nil {
		r.created.Expect(name)
	}
	return role, err
}

// ensureBinding is ensureRole for the binding. It returns nil if the binding was created a moment ago.
func (r *ReadRights) ensureBinding(ctx context.Context, cluster *fleet.Cluster) (*rbacv1.ClusterRoleBinding, error) {
	name, client := nameFor(cluster), r.client.RbacV1().ClusterRoleBindings()
	binding, err := r.bindings.Get(name)
	if !apierrors.IsNotFound(err) {
		r.bound.Observed(name)
		return binding, err
	}
	if r.bound.IsExpected(name) {
		return nil, nil
	}
	meta, err := r.metaFor(ctx, cluster)
	if err != nil {
		return nil, err
	}
	binding, err = client.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   readersFor(cluster),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: roleKind, Name: name},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return client.Get(ctx, name, metav1.GetOptions{})
	}
	if err == nil {
		r.bound.Expect(name)
	}
	return binding, err
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

// readersFor are all ServiceAccounts of the cluster namespace, in which only the hub creates objects: for a while, an agent may hold two
// credentials, and both have the rights of its Cluster.
func readersFor(cluster *fleet.Cluster) []rbacv1.Subject {
	return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + namespaceOf(cluster)}}
}

// metaFor asks the API server for a namespace that the cache does not show: it may have been created a moment ago.
func (r *ReadRights) metaFor(ctx context.Context, cluster *fleet.Cluster) (metav1.ObjectMeta, error) {
	namespace, err := r.namespaces.Get(namespaceOf(cluster))
	if apierrors.IsNotFound(err) {
		namespace, err = r.client.CoreV1().Namespaces().Get(ctx, namespaceOf(cluster), metav1.GetOptions{})
	}
	if err != nil {
		return metav1.ObjectMeta{}, err
	}
	return metav1.ObjectMeta{
		Name:   nameFor(cluster),
		Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
		Annotations: map[string]string{
			fleet.ClusterAnnotation:          cluster.Name,
			fleet.ClusterNamespaceAnnotation: cluster.Namespace,
		},
		OwnerReferences: ownedBy(namespace),
	}, nil
}

func ownedBy(namespace *corev1.Namespace) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: namespace.Name, UID: namespace.UID}}
}

func namespaceOf(cluster *fleet.Cluster) string {
	return registration.ClusterNamespace(cluster.Namespace, cluster.Name)
}

func nameFor(cluster *fleet.Cluster) string {
	return registration.ContentRoleName(namespaceOf(cluster))
}

func isFor(object metav1.Object, cluster *fleet.Cluster) bool {
	of := ClusterOf(object)
	return len(of) == 1 && of[0] == types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}
}

// ClusterOf returns the Cluster that a ClusterRole or binding of ReadRights belongs to; none for another object.
func ClusterOf(object metav1.Object) []types.NamespacedName {
	a := object.GetAnnotations()
	of := types.NamespacedName{Namespace: a[fleet.ClusterNamespaceAnnotation], Name: a[fleet.ClusterAnnotation]}
	if object.GetLabels()[fleet.ManagedLabel] != fleet.ManagedValue || of.Namespace == "" || of.Name == "" ||
		registration.ContentRoleName(registration.ClusterNamespace(of.Namespace, of.Name)) != object.GetName() {
		return nil
	}
	return []types.NamespacedName{of}
}
