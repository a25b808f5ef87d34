package agentrole

import (
	"context"
	"fmt"
	"slices"

	"github.com/rancher/wrangler/v3/pkg/apply"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/registration"
)

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
