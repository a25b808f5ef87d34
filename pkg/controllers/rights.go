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
	"github.com/muster-fleet/muster/pkg/controllers/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ensureGround makes what every registration builds on: the hub's two namespaces, and the ClusterRoles, if any, that are bound
// for each agent.
func ensureGround(ctx context.Context, client kubernetes.Interface, roles []*rbacv1.ClusterRole, namespaces ...string) error {
	for _, name := range namespaces {
		if err := writes.EnsureNamespace(ctx, client, name); err != nil {
			return err
		}
	}
	if len(roles) == 0 {
		return agentrole.Ensure(ctx, client)
	}
	for _, role := range roles {
		if err := ensureRole(ctx, client, role); err != nil {
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
			return nil // by another hub of this release, which starts at the same time
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

// sharedRoles are bound for each agent where Fleet's own controllers make the BundleDeployments: the hub does not know then
// which Contents those name, and which Secrets and ConfigMaps are put beside them. Otherwise an agent that renews has a Role of its own, and all others share one.
func sharedRoles(disableBundles bool) []*rbacv1.ClusterRole {
	if !disableBundles {
		return nil
	}
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
