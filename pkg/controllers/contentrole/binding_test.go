package contentrole

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
)

func (s *stage) liveBinding(t *testing.T) *rbacv1.ClusterRoleBinding {
	t.Helper()
	binding, err := s.server.RbacV1().ClusterRoleBindings().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	binding.ManagedFields, binding.TypeMeta = nil, metav1.TypeMeta{}
	return binding
}

// deployed is a stage on which the agent of alice reads something already.
func deployed(t *testing.T, binding *rbacv1.ClusterRoleBinding) *stage {
	t.Helper()
	s := newStage(homeNamespace(), aliceRole("s-1"), binding)
	require.NoError(t, s.roles.Add(aliceRole("s-1")))
	require.NoError(t, s.bindings.Add(binding))
	return s
}

func TestAllowBindsTheClusterRole(t *testing.T) {
	s := newStage(homeNamespace())
	assert.False(t, s.Bound(alice))
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	want := aliceBinding()
	want.UID, want.ResourceVersion = "", ""
	assert.Equal(t, want, s.liveBinding(t))
	s.writes()
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Empty(t, s.writes(), "the caches have not seen them yet")
	assert.True(t, s.Unseen(alice), "it may be gone before they do")
	require.NoError(t, s.bindings.Add(s.liveBinding(t)))
	assert.False(t, s.Unseen(alice))
	assert.True(t, s.Bound(alice))
}

func TestAllowCorrectsTheBinding(t *testing.T) {
	s := deployed(t, aliceBinding())
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Empty(t, s.writes())

	require.NoError(t, s.bindings.Delete(aliceBinding()))
	require.NoError(t, s.server.RbacV1().ClusterRoleBindings().Delete(t.Context(), name, metav1.DeleteOptions{}))
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Equal(t, aliceBinding().Subjects, s.liveBinding(t).Subjects)

	wide := aliceBinding()
	wide.Subjects[0].Name = "system:authenticated"
	s = deployed(t, wide)
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Equal(t, aliceBinding().Subjects, s.liveBinding(t).Subjects)
}

func TestForeignBindingIsLeftAlone(t *testing.T) {
	for title, change := range map[string]func(*rbacv1.ClusterRoleBinding){
		"a person's":            func(b *rbacv1.ClusterRoleBinding) { b.Labels, b.Annotations = nil, nil },
		"of another Cluster":    func(b *rbacv1.ClusterRoleBinding) { b.Annotations["fleet.cattle.io/cluster"] = "bob" },
		"to something else":     func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "cluster-admin" },
		"to a Role of the name": func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Kind = "Role" },
	} {
		foreign := aliceBinding()
		change(foreign)
		s := deployed(t, foreign)
		var refused *desiredset.ForeignError
		require.ErrorAs(t, s.Allow(t.Context(), alice, []string{"s-1"}), &refused, title)
		assert.Equal(t, "ClusterRoleBinding", refused.Kind, title)
		assert.Empty(t, s.writes(), title)
	}
	foreign := aliceBinding()
	foreign.Annotations = nil
	s := deployed(t, foreign)
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Empty(t, s.writes())
	assert.False(t, s.Bound(alice))
}

func TestForbid(t *testing.T) {
	s := deployed(t, aliceBinding())
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Equal(t, []string{"delete clusterrolebindings"}, s.writes())
	require.NoError(t, s.bindings.Delete(aliceBinding()))
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Empty(t, s.writes(), "there is nothing left to take away")

	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Equal(t, []string{"create clusterrolebindings"}, s.writes())
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Equal(t, []string{"delete clusterrolebindings"}, s.writes(), "also one that the cache has not seen yet")
}
