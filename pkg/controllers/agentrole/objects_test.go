package agentrole

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestAllowObjects(t *testing.T) {
	informer := func(example runtime.Object) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(nil, example, 0, cache.Indexers{})
	}
	s := newContentScene(homeNamespace())
	roles, bindings := informer(&rbacv1.Role{}), informer(&rbacv1.RoleBinding{})
	s.objects = desiredset.New(s.server, informer(&corev1.ServiceAccount{}), informer(&coordinationv1.Lease{}), roles, bindings, informer(&rbacv1.ClusterRoleBinding{}))
	ask := func(names ...string) []string {
		require.NoError(t, s.AllowObjects(t.Context(), alice, names, nil))
		return s.writes()
	}
	live := func() *rbacv1.Role {
		role, err := s.server.RbacV1().Roles(home).Get(t.Context(), registration.RoleDeploymentSecrets, metav1.GetOptions{})
		require.NoError(t, err)
		return role
	}

	assert.Empty(t, ask(), "a Cluster without values costs nothing")
	assert.Equal(t, []string{"create roles", "create rolebindings"}, ask("app", "app"))
	role := live()
	assert.Equal(t, []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"app"}}}, role.Rules)
	assert.Equal(t, []types.NamespacedName{{Namespace: "ws", Name: "alice"}}, ClusterOfObjects(role))
	binding, err := s.server.RbacV1().RoleBindings(home).Get(t.Context(), registration.RoleDeploymentSecrets, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, aliceBinding().Subjects, binding.Subjects)
	require.NoError(t, roles.GetStore().Add(role))
	require.NoError(t, bindings.GetStore().Add(binding))

	assert.Empty(t, ask("app"))
	assert.Equal(t, []string{"patch roles"}, ask("more", "app"))
	assert.Equal(t, []string{"app", "more"}, live().Rules[0].ResourceNames)
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Equal(t, []string{"delete rolebindings", "delete roles"}, s.writes())

	_, err = s.server.RbacV1().Roles(home).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: registration.RoleDeploymentSecrets}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, roles.GetStore().Replace(nil, ""))
	var foreign *desiredset.ForeignError
	require.ErrorAs(t, s.AllowObjects(t.Context(), alice, []string{"app"}, nil), &foreign)
}
