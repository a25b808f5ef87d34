package agentrole

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/registration"
)

var (
	alice       = &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "alice"}}
	home        = registration.ClusterNamespace("ws", "alice")
	contentRole = "fleet-content-" + home
)

// contentScene is a ReadRights over an API server of objects, and caches that the test fills.
type contentScene struct {
	*ReadRights
	server                                        *fake.Clientset
	cachedRoles, cachedBindings, cachedNamespaces cache.Indexer
}

func newContentScene(objects ...runtime.Object) *contentScene {
	indexer := func() cache.Indexer { return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}) }
	s := &contentScene{server: fake.NewClientset(objects...), cachedRoles: indexer(), cachedBindings: indexer(), cachedNamespaces: indexer()}
	clock := clocktesting.NewFakeClock(time.Now())
	s.ReadRights = &ReadRights{
		client:     s.server,
		roles:      generic.NewNonNamespacedCache[*rbacv1.ClusterRole](s.cachedRoles, schema.GroupResource{}),
		bindings:   generic.NewNonNamespacedCache[*rbacv1.ClusterRoleBinding](s.cachedBindings, schema.GroupResource{}),
		namespaces: generic.NewNonNamespacedCache[*corev1.Namespace](s.cachedNamespaces, schema.GroupResource{}),
		created:    expectations.New(clock),
		bound:      expectations.New(clock),
	}
	return s
}

func homeNamespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home, UID: "uid-of-home"}}
}

func aliceRole(contents ...string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{
			Name: contentRole, UID: "uid-of-role", ResourceVersion: "5", Labels: map[string]string{"fleet.cattle.io/managed": "true"},
			Annotations:     map[string]string{"fleet.cattle.io/cluster": "alice", "fleet.cattle.io/cluster-namespace": "ws"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: home, UID: "uid-of-home"}},
		},
		Rules: rulesFor(contents),
	}
}

func aliceBinding() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: aliceRole().ObjectMeta,
		Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "system:serviceaccounts:" + home}},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: contentRole},
	}
}

func (s *contentScene) liveRole(t *testing.T) *rbacv1.ClusterRole {
	t.Helper()
	role, err := s.server.RbacV1().ClusterRoles().Get(t.Context(), contentRole, metav1.GetOptions{})
	require.NoError(t, err)
	role.ManagedFields, role.TypeMeta = nil, metav1.TypeMeta{}
	return role
}

// writes are the verbs and resources of the writes since the last call.
func (s *contentScene) writes() (verbs []string) {
	for _, action := range s.server.Actions() {
		if action.GetVerb() != "get" {
			verbs = append(verbs, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	s.server.ClearActions()
	return verbs
}

func (s *contentScene) liveBinding(t *testing.T) *rbacv1.ClusterRoleBinding {
	t.Helper()
	binding, err := s.server.RbacV1().ClusterRoleBindings().Get(t.Context(), contentRole, metav1.GetOptions{})
	require.NoError(t, err)
	binding.ManagedFields, binding.TypeMeta = nil, metav1.TypeMeta{}
	return binding
}

// cached is an API server with these objects, which the caches show.
func cached(t *testing.T, role *rbacv1.ClusterRole, binding *rbacv1.ClusterRoleBinding) *contentScene {
	t.Helper()
	s := newContentScene(homeNamespace(), role, binding)
	require.NoError(t, s.cachedRoles.Add(role))
	require.NoError(t, s.cachedBindings.Add(binding))
	return s
}

func TestAllow(t *testing.T) {
	wideRole, wideBinding := aliceRole("s-1"), aliceBinding()
	wideRole.Rules[0].ResourceNames, wideBinding.Subjects[0].Name = nil, "system:authenticated"
	for _, row := range []struct {
		name    string
		role    *rbacv1.ClusterRole
		binding *rbacv1.ClusterRoleBinding
		after   []string
		writes  []string
	}{
		{"nothing changed", aliceRole("s-1", "s-2"), aliceBinding(), []string{"s-2", "s-1"}, nil},
		{"one more", aliceRole("s-1"), aliceBinding(), []string{"s-1", "s-2"}, []string{"update clusterroles"}},
		{"another", aliceRole("s-1"), aliceBinding(), []string{"s-2"}, []string{"update clusterroles"}},
		{"nothing any more", aliceRole("s-1"), aliceBinding(), nil, []string{"update clusterroles"}},
		{"nothing as before", aliceRole(), aliceBinding(), nil, nil},
		{"somebody widened the ClusterRole", wideRole, aliceBinding(), []string{"s-1"}, []string{"update clusterroles"}},
		{"somebody widened the binding", aliceRole("s-1"), wideBinding, []string{"s-1"}, []string{"patch clusterrolebindings"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := cached(t, row.role, row.binding)
			require.NoError(t, s.Allow(t.Context(), alice, row.after))
			assert.Equal(t, row.writes, s.writes())
			assert.Equal(t, rulesFor(row.after), s.liveRole(t).Rules)
			assert.Equal(t, aliceBinding().Subjects, s.liveBinding(t).Subjects)
		})
	}
	t.Run("the cluster namespace was created again: it owns both", func(t *testing.T) {
		s := cached(t, aliceRole("s-1"), aliceBinding())
		again := homeNamespace()
		again.UID = "uid-of-the-next"
		require.NoError(t, s.cachedNamespaces.Add(again))
		require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
		assert.EqualValues(t, "uid-of-the-next", s.liveRole(t).OwnerReferences[0].UID)
	})
	t.Run("the cache does not show the last write: the API server is asked", func(t *testing.T) {
		latest := aliceRole("s-1", "s-2")
		latest.ResourceVersion = "6"
		s := newContentScene(latest)
		s.written.Wrote(latest)
		require.NoError(t, s.cachedRoles.Add(aliceRole("s-1")))
		require.NoError(t, s.cachedBindings.Add(aliceBinding()))
		require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1", "s-2"}))
		assert.Empty(t, s.writes())
	})
	t.Run("new: created in this order, owned by the cluster namespace; deleted: created again", func(t *testing.T) {
		s := newContentScene(homeNamespace())
		assert.False(t, s.Bound(alice))
		require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
		assert.Equal(t, []string{"create clusterroles", "create clusterrolebindings"}, s.writes())
		role, binding := aliceRole("s-1"), aliceBinding()
		role.UID, role.ResourceVersion, binding.UID, binding.ResourceVersion = "", "", "", ""
		assert.Equal(t, role, s.liveRole(t))
		assert.Equal(t, binding, s.liveBinding(t))

		require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
		assert.Empty(t, s.writes(), "the caches do not show them yet")
		assert.True(t, s.BindingUncached(alice), "it may be deleted before they do")
		require.NoError(t, s.cachedBindings.Add(s.liveBinding(t)))
		assert.False(t, s.BindingUncached(alice))
		assert.True(t, s.Bound(alice))

		require.NoError(t, s.server.RbacV1().ClusterRoles().Delete(t.Context(), contentRole, metav1.DeleteOptions{}))
		s.writes()
		require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
		assert.Equal(t, []string{"create clusterroles"}, s.writes())
		require.NoError(t, s.cachedRoles.Add(s.liveRole(t)))
		require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
		assert.False(t, s.created.IsExpected(contentRole), "the cache shows it")
	})
	t.Run("the binding was deleted: created again", func(t *testing.T) {
		s := cached(t, aliceRole("s-1"), aliceBinding())
		require.NoError(t, s.cachedBindings.Delete(aliceBinding()))
		require.NoError(t, s.server.RbacV1().ClusterRoleBindings().Delete(t.Context(), contentRole, metav1.DeleteOptions{}))
		require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
		assert.Equal(t, aliceBinding().Subjects, s.liveBinding(t).Subjects)
	})
	t.Run("errors are returned", func(t *testing.T) {
		overloaded := errors.New("overloaded")
		for verb, s := range map[string]*contentScene{"create": newContentScene(homeNamespace()), "update": cached(t, aliceRole(), aliceBinding())} {
			s.server.PrependReactor(verb, "clusterroles", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, overloaded })
			require.ErrorIs(t, s.Allow(t.Context(), alice, []string{"s-1"}), overloaded, verb)
		}
		s := newContentScene()
		require.ErrorContains(t, s.Allow(t.Context(), alice, []string{"s-1"}), home, "without its namespace nothing would delete it")
		assert.Empty(t, s.writes())
	})
}

func TestAllowRefusesForeignObjects(t *testing.T) {
	for title, change := range map[string]func(*rbacv1.ClusterRole){
		"of a person":        func(r *rbacv1.ClusterRole) { r.Labels, r.Annotations = nil, nil },
		"without our label":  func(r *rbacv1.ClusterRole) { r.Labels = nil },
		"of another Cluster": func(r *rbacv1.ClusterRole) { r.Annotations["fleet.cattle.io/cluster"] = "bob" },
	} {
		foreign := aliceRole("s-1")
		change(foreign)
		s := newContentScene(homeNamespace(), foreign)
		var refused *desiredset.ForeignError
		require.ErrorAs(t, s.Allow(t.Context(), alice, []string{"s-9"}), &refused, title)
		assert.Contains(t, refused.Error(), "ClusterRole "+contentRole)
		assert.Equal(t, foreign.Rules, s.liveRole(t).Rules, title)
	}
	for title, change := range map[string]func(*rbacv1.ClusterRoleBinding){
		"of a person":            func(b *rbacv1.ClusterRoleBinding) { b.Labels, b.Annotations = nil, nil },
		"of another Cluster":     func(b *rbacv1.ClusterRoleBinding) { b.Annotations["fleet.cattle.io/cluster"] = "bob" },
		"to another ClusterRole": func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "cluster-admin" },
		"to a Role of that name": func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Kind = "Role" },
	} {
		foreign := aliceBinding()
		change(foreign)
		s := cached(t, aliceRole("s-1"), foreign)
		var refused *desiredset.ForeignError
		require.ErrorAs(t, s.Allow(t.Context(), alice, []string{"s-1"}), &refused, title)
		assert.Equal(t, "ClusterRoleBinding", refused.Kind, title)
		assert.Empty(t, s.writes(), title)
	}
}

func TestForbid(t *testing.T) {
	s := cached(t, aliceRole("s-1"), aliceBinding())
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Equal(t, []string{"delete clusterrolebindings"}, s.writes())
	require.NoError(t, s.cachedBindings.Delete(aliceBinding()))
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Empty(t, s.writes(), "there is none")

	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Equal(t, []string{"create clusterrolebindings"}, s.writes())
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Equal(t, []string{"delete clusterrolebindings"}, s.writes(), "also one that the cache does not show yet")

	foreign := aliceBinding()
	foreign.Annotations = nil
	s = cached(t, aliceRole("s-1"), foreign)
	require.NoError(t, s.Forbid(t.Context(), alice))
	assert.Empty(t, s.writes())
	assert.False(t, s.Bound(alice))
}

func TestClusterOf(t *testing.T) {
	assert.Equal(t, []types.NamespacedName{{Namespace: "ws", Name: "alice"}}, ClusterOf(aliceRole()))
	for title, change := range map[string]func(*rbacv1.ClusterRole){
		"no label":       func(r *rbacv1.ClusterRole) { r.Labels = nil },
		"no annotations": func(r *rbacv1.ClusterRole) { r.Annotations = nil },
		"another name":   func(r *rbacv1.ClusterRole) { r.Name = "cluster-admin" },
	} {
		role := aliceRole()
		change(role)
		assert.Empty(t, ClusterOf(role), title)
	}
}

func FuzzContentRules(f *testing.F) {
	for _, names := range []string{"", ",", "s-1", "s-2,s-1,s-2", "*", "s-1,*"} {
		f.Add(names)
	}
	f.Fuzz(func(t *testing.T, joined string) {
		names := slices.DeleteFunc(strings.Split(joined, ","), func(name string) bool { return name == "" })
		rules := rulesFor(names)
		if len(names) == 0 {
			assert.Empty(t, rules)
			return
		}
		require.Len(t, rules, 1)
		assert.NotEmpty(t, rules[0].ResourceNames, "without a name it would be a rule for all")
		assert.True(t, slices.IsSorted(rules[0].ResourceNames), "the same for each order")
		assert.ElementsMatch(t, slices.Compact(slices.Sorted(slices.Values(names))), rules[0].ResourceNames)
	})
}
