package controllers

import (
	"context"
	"fmt"
	"reflect"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/clusternet"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

// EnsureNamespacesAndRoles creates what every registration needs: the hub's two namespaces, and the ClusterRoles that are bound for each
// agent.
func EnsureNamespacesAndRoles(ctx context.Context, c *app.Context) error {
	for _, name := range []string{c.SystemNamespace, c.RegistrationNamespace()} {
		if err := writes.EnsureNamespace(ctx, c.Kubernetes, name); err != nil {
			return err
		}
	}
	if c.Clusternet != nil {
		if err := clusternet.EnsureRole(ctx, c.Kubernetes); err != nil {
			return err
		}
	}
	if !c.DisableBundles {
		return agentrole.Ensure(ctx, c.Kubernetes)
	}
	for _, role := range sharedRoles() {
		if err := ensureRole(ctx, c.Kubernetes, role); err != nil {
			return fmt.Errorf("ClusterRole %s: %w", role.Name, err)
		}
	}
	return nil
}

func ensureRole(ctx context.Context, client kubernetes.Interface, role *rbacv1.ClusterRole) error {
	roles := client.RbacV1().ClusterRoles()
	existing, err := roles.Get(ctx, role.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = roles.Create(ctx, role, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // by another hub of this version, which starts at the same time
		}
		return err
	}
	if err != nil || reflect.DeepEqual(existing.Rules, role.Rules) {
		return err
	}
	changed := existing.DeepCopy()
	changed.Rules = role.Rules
	_, err = roles.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// sharedRoles are bound for each agent where Fleet's own controllers make the BundleDeployments. The hub does not know then
// which Contents those name, and which Secrets and ConfigMaps are put beside them.
func sharedRoles() []*rbacv1.ClusterRole {
	group := []string{fleet.SchemeGroupVersion.Group}
	return []*rbacv1.ClusterRole{
		{
			ObjectMeta: metav1.ObjectMeta{Name: registration.ClusterRoleBundleDeployment},
			Rules: []rbacv1.PolicyRule{
				{Verbs: []string{"get", "list", "watch"}, APIGroups: group, Resources: []string{"bundledeployments"}},
				{Verbs: []string{"update", "patch"}, APIGroups: group, Resources: []string{"bundledeployments/status"}},
				{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: registration.ClusterRoleContent},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: group, Resources: []string{"contents"}}},
		},
	}
}
