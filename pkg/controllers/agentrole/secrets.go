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
	"github.com/muster-fleet/muster/pkg/registration"
)

// secretsSetID names the object set of a Cluster with the Role and the RoleBinding of AllowSecrets.
const secretsSetID = "deployment-secrets"

// AllowSecrets lets the agent of a Cluster read these Secrets of its cluster namespace and no other. Without names it deletes the Role
// and the RoleBinding. It returns a *desiredset.ForeignError if one of that name belongs to somebody else.
func (r *ContentRoles) AllowSecrets(ctx context.Context, cluster *fleet.Cluster, names []string) error {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
	owner.SetGroupVersionKind(clusterKind)
	if len(names) == 0 {
		return r.secrets.Ensure(ctx, secretsSetID, owner)
	}
	meta := metav1.ObjectMeta{
		Namespace: namespaceOf(cluster), Name: registration.RoleDeploymentSecrets, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
	}
	named := slices.Compact(slices.Sorted(slices.Values(names)))
	err := r.secrets.Ensure(ctx, secretsSetID, owner,
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: named,
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: readersFor(cluster),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		})
	if err != nil {
		return fmt.Errorf("the right of the agent to read its Helm values: %w", err)
	}
	return nil
}

var clusterKind = fleet.SchemeGroupVersion.WithKind("Cluster")

// ClusterOfSecrets returns the Cluster that a Role or RoleBinding of AllowSecrets belongs to; none for another object.
func ClusterOfSecrets(object metav1.Object) []types.NamespacedName {
	a := object.GetAnnotations()
	if object.GetName() != registration.RoleDeploymentSecrets || a[apply.LabelGVK] != clusterKind.String() {
		return nil
	}
	return []types.NamespacedName{{Namespace: a[apply.LabelNamespace], Name: a[apply.LabelName]}}
}
