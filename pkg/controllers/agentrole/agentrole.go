// Package agentrole manages rights of agents on the hub: the ClusterRoles that agents share, the one binding by which all of them read
// Contents, and, for each Cluster, the right to read the Secrets and ConfigMaps of what is deployed to it (ReadRights).
package agentrole

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/generic"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/rightsdigest"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	roleController    = "agent-role"
	bindingController = "agent-content-binding"
)

// Rules let an agent read its BundleDeployments and write their status.
func Rules() []rbacv1.PolicyRule {
	group := []string{fleet.SchemeGroupVersion.Group}
	return []rbacv1.PolicyRule{
		{Verbs: []string{"get", "list", "watch"}, APIGroups: group, Resources: []string{"bundledeployments"}},
		{Verbs: []string{"update", "patch"}, APIGroups: group, Resources: []string{"bundledeployments/status"}},
	}
}

// shared returns the ClusterRoles that agents share. Where Fleet's own controllers make the BundleDeployments, the hub does not know which
// Secrets and ConfigMaps are put beside them. So the shared ClusterRole then permits agents to read every Secret and ConfigMap in their cluster
// namespace.
func shared(disableBundles bool) []*rbacv1.ClusterRole {
	named := func(name string, rules []rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: desiredset.Managed("", name), Rules: rules}
	}
	contents := named(registration.ClusterRoleContent, []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, APIGroups: []string{fleet.SchemeGroupVersion.Group}, Resources: []string{"contents"}},
	})
	if disableBundles {
		secrets := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}}
		return []*rbacv1.ClusterRole{contents, named(registration.ClusterRoleBundleDeployment, append(Rules(), secrets))}
	}
	return []*rbacv1.ClusterRole{contents, named(registration.ClusterRoleAgent, Rules())}
}

// contentReaders lets every ServiceAccount read a Content whose name it knows. The name is a digest of the Content, and the hub gives it only to
// the agents that deploy the Content. No group contains the agents alone, and a binding for each agent would make every request to the API
// server slower with every cluster.
func contentReaders() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: desiredset.Managed("", registration.ClusterRoleContent),
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: registration.ClusterRoleContent},
	}
}

// Ensure creates or corrects the ClusterRoles that agents share and the binding to read Contents. It adopts foreign objects of these
// names: a user who may write them has these rights anyway. The label keeps them in the cache of the hub.
func Ensure(ctx context.Context, client kubernetes.Interface, disableBundles bool) error {
	for _, role := range shared(disableBundles) {
		if err := EnsureRole(ctx, client, role); err != nil {
			return err
		}
	}
	if err := ensureBinding(ctx, client, contentReaders()); err != nil {
		return fmt.Errorf("ClusterRoleBinding %s: %w", registration.ClusterRoleContent, err)
	}
	return nil
}

// EnsureRole creates or corrects a ClusterRole. Annotations of others stay.
func EnsureRole(ctx context.Context, client kubernetes.Interface, wanted *rbacv1.ClusterRole) error {
	roles := client.RbacV1().ClusterRoles()
	existing, err := roles.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = roles.Create(ctx, wanted, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil // by another hub that starts at the same time
		}
	case err == nil && !isAsWanted(existing, wanted):
		changed := existing.DeepCopy()
		changed.Rules, changed.AggregationRule = wanted.Rules, nil
		metav1.SetMetaDataLabel(&changed.ObjectMeta, fleet.ManagedLabel, fleet.ManagedValue)
		changed.Annotations = labels.Merge(changed.Annotations, wanted.Annotations)
		_, err = roles.Update(ctx, changed, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("ClusterRole %s: %w", wanted.Name, err)
	}
	return nil
}

// ensureBinding creates the binding, or deletes and creates it again if it differs from the wanted one: the API server does not permit a
// change of roleRef.
func ensureBinding(ctx context.Context, client kubernetes.Interface, wanted *rbacv1.ClusterRoleBinding) error {
	bindings := client.RbacV1().ClusterRoleBindings()
	existing, err := bindings.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case err == nil && binds(existing, wanted):
		return nil
	case err == nil:
		err = bindings.Delete(ctx, existing.Name, *metav1.NewPreconditionDeleteOptions(string(existing.UID)))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = bindings.Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil // by another hub that starts at the same time
	}
	return err
}

// Register sets up the controllers, which correct these objects when somebody changes or deletes them. With disableBundles, it does not watch
// the ClusterRoles, because Fleet's own controllers maintain them.
func Register(ctx context.Context, c *app.Context) {
	c.RBAC.ClusterRoleBinding().OnChange(ctx, bindingController, app.Handler(c.Passes, bindingController, onBinding(c)))
	if !c.DisableBundles {
		c.RBAC.ClusterRole().OnChange(ctx, roleController, app.Handler(c.Passes, roleController, onRole(c)))
	}
}

func onRole(c *app.Context) generic.ObjectHandler[*rbacv1.ClusterRole] {
	return func(key string, role *rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
		all := shared(c.DisableBundles)
		at := slices.IndexFunc(all, func(wanted *rbacv1.ClusterRole) bool { return wanted.Name == key })
		if at < 0 || role != nil && isAsWanted(role, all[at]) {
			return role, nil
		}
		ctx, cancel := c.Passes.Context()
		defer cancel()
		return role, Ensure(ctx, c.Kubernetes, c.DisableBundles)
	}
}

func onBinding(c *app.Context) generic.ObjectHandler[*rbacv1.ClusterRoleBinding] {
	return func(key string, binding *rbacv1.ClusterRoleBinding) (*rbacv1.ClusterRoleBinding, error) {
		if key != registration.ClusterRoleContent || binding != nil && binds(binding, contentReaders()) {
			return binding, nil
		}
		ctx, cancel := c.Passes.Context()
		defer cancel()
		return binding, Ensure(ctx, c.Kubernetes, c.DisableBundles)
	}
}

func isAsWanted(role, wanted *rbacv1.ClusterRole) bool {
	return rightsdigest.Equal(role, wanted) && role.Labels[fleet.ManagedLabel] == fleet.ManagedValue &&
		maps.Equal(role.Annotations, labels.Merge(role.Annotations, wanted.Annotations))
}

func binds(binding, wanted *rbacv1.ClusterRoleBinding) bool {
	return rightsdigest.Equal(binding, wanted) && binding.Labels[fleet.ManagedLabel] == fleet.ManagedValue
}

// ReadRights manages, for each Cluster, the right of its agent to read the Secrets and ConfigMaps that its BundleDeployments name.
type ReadRights struct{ sets desiredset.Sets }

// NewReadRights registers its caches, so call it while the controllers are registered.
func NewReadRights(c *app.Context) *ReadRights {
	return &ReadRights{desiredset.New(c.Kubernetes, c.Core.ServiceAccount().Informer(), c.Coordination.Lease().Informer(), c.RBAC.Role().Informer(),
		c.RBAC.RoleBinding().Informer(), c.RBAC.ClusterRoleBinding().Informer())}
}

// objectsSetID names the object set of a Cluster with the Role and the RoleBinding of AllowObjects.
const objectsSetID = "deployment-secrets"

// AllowObjects lets the agent of a Cluster read these Secrets and ConfigMaps of its cluster namespace and no other. Without names it
// deletes the Role and the RoleBinding. It returns a *desiredset.ForeignError if one of that name belongs to another owner.
func (r *ReadRights) AllowObjects(ctx context.Context, cluster *fleet.Cluster, secrets, configMaps []string) error {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
	owner.SetGroupVersionKind(clusterKind)
	var rules []rbacv1.PolicyRule
	allow := func(resource string, names []string) {
		if len(names) > 0 { // a rule without names would grant all
			rules = append(rules, rbacv1.PolicyRule{
				Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource},
				ResourceNames: slices.Compact(slices.Sorted(slices.Values(names))),
			})
		}
	}
	allow("secrets", secrets)
	allow("configmaps", configMaps)
	if len(rules) == 0 {
		return r.sets.Ensure(ctx, objectsSetID, owner)
	}
	meta := desiredset.Managed(registration.ClusterNamespace(cluster.Namespace, cluster.Name), registration.RoleDeploymentSecrets)
	err := r.sets.Ensure(ctx, objectsSetID, owner, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, &rbacv1.RoleBinding{
		ObjectMeta: meta, Subjects: agentsIn(meta.Namespace), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
	})
	if err != nil {
		return fmt.Errorf("the right of the agent to read the Secrets and ConfigMaps of its BundleDeployments: %w", err)
	}
	return nil
}

// agentsIn returns all ServiceAccounts of a cluster namespace, in which only the hub creates objects: for a while, an agent may hold two
// credentials, and both have the rights of its Cluster.
func agentsIn(clusterNamespace string) []rbacv1.Subject {
	return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + clusterNamespace}}
}

var clusterKind = fleet.SchemeGroupVersion.WithKind("Cluster")

// ClusterOfObjects returns the Cluster that a Role or RoleBinding of AllowObjects belongs to; none for another object.
func ClusterOfObjects(object metav1.Object) []types.NamespacedName {
	a := object.GetAnnotations()
	if object.GetName() != registration.RoleDeploymentSecrets || a[apply.LabelGVK] != clusterKind.String() {
		return nil
	}
	cluster := types.NamespacedName{Namespace: a[apply.LabelNamespace], Name: a[apply.LabelName]}
	if object.GetNamespace() != registration.ClusterNamespace(cluster.Namespace, cluster.Name) { // a user of another workspace has created it
		return nil
	}
	return []types.NamespacedName{cluster}
}
