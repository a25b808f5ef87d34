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
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestAllowObjects(t *testing.T) {
	alice, home := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "alice"}}, registration.ClusterNamespace("ws", "alice")
	informer := func(example runtime.Object) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(nil, example, 0, cache.Indexers{})
	}
	server := fake.NewClientset()
	roles, bindings := informer(&rbacv1.Role{}), informer(&rbacv1.RoleBinding{})
	rights := &ReadRights{desiredset.New(server, informer(&corev1.ServiceAccount{}), informer(&coordinationv1.Lease{}), roles, bindings, informer(&rbacv1.ClusterRoleBinding{}))}
	ask := func(names ...string) []string {
		server.ClearActions()
		require.NoError(t, rights.AllowObjects(t.Context(), alice, names, nil))
		return writesOf(server)
	}
	live := func() *rbacv1.Role {
		role, err := server.RbacV1().Roles(home).Get(t.Context(), registration.RoleDeploymentSecrets, metav1.GetOptions{})
		require.NoError(t, err)
		return role
	}

	assert.Empty(t, ask(), "a Cluster without values costs nothing")
	assert.Equal(t, []string{"create roles", "create rolebindings"}, ask("app", "app"))
	role := live()
	assert.Equal(t, []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"app"}}}, role.Rules)
	assert.Equal(t, []types.NamespacedName{{Namespace: "ws", Name: "alice"}}, ClusterOfObjects(role))
	copied := role.DeepCopy()
	copied.Namespace = "mallory"
	assert.Empty(t, ClusterOfObjects(copied), "a user of another workspace has made it")
	binding, err := server.RbacV1().RoleBindings(home).Get(t.Context(), registration.RoleDeploymentSecrets, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "system:serviceaccounts:" + home}}, binding.Subjects)
	require.NoError(t, roles.GetStore().Add(role))
	require.NoError(t, bindings.GetStore().Add(binding))

	assert.Empty(t, ask("app"))
	assert.Equal(t, []string{"patch roles"}, ask("more", "app"))
	assert.Equal(t, []string{"app", "more"}, live().Rules[0].ResourceNames)
	assert.Equal(t, []string{"delete rolebindings", "delete roles"}, ask())

	_, err = server.RbacV1().Roles(home).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: registration.RoleDeploymentSecrets}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, roles.GetStore().Replace(nil, ""))
	var foreign *desiredset.ForeignError
	require.ErrorAs(t, rights.AllowObjects(t.Context(), alice, []string{"app"}, nil), &foreign)
}
