// Package agentrole manages rights of agents on the hub: the ClusterRole that is bound to each agent in its own cluster namespace, and the
// rights to read what is deployed to its Cluster (ReadRights): Contents (contents.go), and Secrets and ConfigMaps (objects.go).
package agentrole

import (
	"context"
	"fmt"

	"github.com/rancher/wrangler/v3/pkg/generic"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/registration"
)

const name = "agent-role"

// Rules let an agent read its BundleDeployments and write their status.
func Rules() []rbacv1.PolicyRule {
	group := []string{fleet.SchemeGroupVersion.Group}
	return []rbacv1.PolicyRule{
		{Verbs: []string{"get", "list", "watch"}, APIGroups: group, Resources: []string{"bundledeployments"}},
		{Verbs: []string{"update", "patch"}, APIGroups: group, Resources: []string{"bundledeployments/status"}},
	}
}

// Ensure creates or corrects the ClusterRole. It takes over a foreign object: a user who may write ClusterRoles
// has these rights anyway. The label keeps the object in the cache of the hub.
func Ensure(ctx context.Context, client kubernetes.Interface) error {
	roles := client.RbacV1().ClusterRoles()
	existing, err := roles.Get(ctx, registration.ClusterRoleAgent, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = roles.Create(ctx, wanted(), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil // by another hub that starts at the same time
		}
	case err == nil && !isRight(existing):
		changed := existing.DeepCopy()
		changed.Rules, changed.AggregationRule = Rules(), nil
		metav1.SetMetaDataLabel(&changed.ObjectMeta, fleet.ManagedLabel, fleet.ManagedValue)
		_, err = roles.Update(ctx, changed, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("ClusterRole %s: %w", registration.ClusterRoleAgent, err)
	}
	return nil
}

func wanted() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: registration.ClusterRoleAgent, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue}},
		Rules:      Rules(),
	}
}

// Register sets up the controller, which corrects the ClusterRole when somebody changes or deletes it.
func Register(ctx context.Context, c *app.Context) {
	c.RBAC.ClusterRole().OnChange(ctx, name, app.Handler(c.Passes, name, handler(c)))
}

func handler(c *app.Context) generic.ObjectHandler[*rbacv1.ClusterRole] {
	return func(key string, role *rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
		if key != registration.ClusterRoleAgent || role != nil && isRight(role) {
			return role, nil
		}
		ctx, cancel := c.Passes.Context()
		defer cancel()
		return role, Ensure(ctx, c.Kubernetes)
	}
}

func isRight(role *rbacv1.ClusterRole) bool {
	return equality.Semantic.DeepEqual(role.Rules, Rules()) && role.AggregationRule == nil && role.Labels[fleet.ManagedLabel] == fleet.ManagedValue
}
