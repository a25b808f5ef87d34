package contentrole

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
	alice = &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "alice"}}
	home  = registration.ClusterNamespace("ws", "alice")
	name  = "fleet-content-" + home
)

// stage is Roles over an API server of objects, and caches that the test fills.
type stage struct {
	*Roles
	server                      *fake.Clientset
	roles, bindings, namespaces cache.Indexer
}

func newStage(objects ...runtime.Object) *stage {
	indexer := func() cache.Indexer { return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}) }
	s := &stage{server: fake.NewClientset(objects...), roles: indexer(), bindings: indexer(), namespaces: indexer()}
	clock := clocktesting.NewFakeClock(time.Now())
	s.Roles = &Roles{
		client:     s.server,
		cache:      generic.NewNonNamespacedCache[*rbacv1.ClusterRole](s.roles, schema.GroupResource{}),
		bindings:   generic.NewNonNamespacedCache[*rbacv1.ClusterRoleBinding](s.bindings, schema.GroupResource{}),
		namespaces: generic.NewNonNamespacedCache[*corev1.Namespace](s.namespaces, schema.GroupResource{}),
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
			Name: name, UID: "uid-of-role", ResourceVersion: "5", Labels: map[string]string{"fleet.cattle.io/managed": "true"},
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
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: name},
	}
}

func (s *stage) live(t *testing.T) *rbacv1.ClusterRole {
	t.Helper()
	role, err := s.server.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	role.ManagedFields, role.TypeMeta = nil, metav1.TypeMeta{}
	return role
}

// writes are what was sent that changes something.
func (s *stage) writes() (verbs []string) {
	for _, action := range s.server.Actions() {
		if action.GetVerb() != "get" {
			verbs = append(verbs, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	s.server.ClearActions()
	return verbs
}

func TestAllowNamesTheContents(t *testing.T) {
	assert.Equal(t, []rbacv1.PolicyRule{{
		Verbs: []string{"get"}, APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"contents"}, ResourceNames: []string{"s-1", "s-2"},
	}}, rulesFor([]string{"s-2", "s-1", "s-2"}))
	assert.Empty(t, rulesFor(nil), "a rule without names would allow all")
	assert.Empty(t, rulesFor([]string{}))
}

func TestAllowCreatesTheClusterRole(t *testing.T) {
	s := newStage(homeNamespace())
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Equal(t, []string{"create clusterroles", "create clusterrolebindings"}, s.writes(), "the binding comes after what it binds")
	want := aliceRole("s-1")
	want.UID, want.ResourceVersion = "", ""
	assert.Equal(t, want, s.live(t), "it goes with the cluster namespace, which owns it")
}

func TestAllowUpdatesTheClusterRole(t *testing.T) {
	for _, row := range []struct {
		name   string
		before *rbacv1.ClusterRole
		after  []string
		writes []string
	}{
		{"nothing changed", aliceRole("s-1", "s-2"), []string{"s-2", "s-1"}, nil},
		{"one more", aliceRole("s-1"), []string{"s-1", "s-2"}, []string{"update clusterroles"}},
		{"another", aliceRole("s-1"), []string{"s-2"}, []string{"update clusterroles"}},
		{"nothing any more", aliceRole("s-1"), nil, []string{"update clusterroles"}},
		{"nothing as before", aliceRole(), nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStage(row.before)
			require.NoError(t, s.roles.Add(row.before))
			require.NoError(t, s.bindings.Add(aliceBinding()))
			require.NoError(t, s.Allow(t.Context(), alice, row.after))
			assert.Equal(t, row.writes, s.writes())
			assert.Equal(t, rulesFor(row.after), s.live(t).Rules)
		})
	}
}

func TestAllowCorrectsTheClusterRole(t *testing.T) {
	wide := aliceRole("s-1")
	wide.Rules[0].ResourceNames = nil
	s := newStage(wide)
	require.NoError(t, s.roles.Add(wide))
	require.NoError(t, s.bindings.Add(aliceBinding()))
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Equal(t, aliceRole("s-1").Rules, s.live(t).Rules)
}

func TestAllowAfterTheNamespaceWasCreatedAgain(t *testing.T) {
	s := newStage(aliceRole("s-1"))
	require.NoError(t, s.roles.Add(aliceRole("s-1")))
	require.NoError(t, s.bindings.Add(aliceBinding()))
	again := homeNamespace()
	again.UID = "uid-of-the-next"
	require.NoError(t, s.namespaces.Add(again))
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.EqualValues(t, "uid-of-the-next", s.live(t).OwnerReferences[0].UID)
}

func TestAllowReadsTheServerAfterItsOwnWrite(t *testing.T) {
	latest := aliceRole("s-1", "s-2")
	latest.ResourceVersion = "6"
	s := newStage(latest)
	s.written.Wrote(latest)
	require.NoError(t, s.roles.Add(aliceRole("s-1")))
	require.NoError(t, s.bindings.Add(aliceBinding()))
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1", "s-2"}))
	assert.Empty(t, s.writes(), "the cache lags behind")
}

func TestAllowAfterTheClusterRoleWasDeleted(t *testing.T) {
	s := newStage(homeNamespace())
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	require.NoError(t, s.server.RbacV1().ClusterRoles().Delete(t.Context(), name, metav1.DeleteOptions{}))
	s.writes()
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.Equal(t, []string{"create clusterroles"}, s.writes())

	require.NoError(t, s.roles.Add(s.live(t)))
	require.NoError(t, s.Allow(t.Context(), alice, []string{"s-1"}))
	assert.False(t, s.created.IsExpected(name), "the cache shows it")
}

func TestForeignClusterRoleIsLeftAlone(t *testing.T) {
	for title, change := range map[string]func(*rbacv1.ClusterRole){
		"a person's":         func(r *rbacv1.ClusterRole) { r.Labels, r.Annotations = nil, nil },
		"without our label":  func(r *rbacv1.ClusterRole) { r.Labels = nil },
		"of another Cluster": func(r *rbacv1.ClusterRole) { r.Annotations["fleet.cattle.io/cluster"] = "bob" },
	} {
		foreign := aliceRole("s-1")
		change(foreign)
		s := newStage(homeNamespace(), foreign)
		var refused *desiredset.ForeignError
		require.ErrorAs(t, s.Allow(t.Context(), alice, []string{"s-9"}), &refused, title)
		assert.Contains(t, refused.Error(), "ClusterRole "+name)
		assert.Equal(t, foreign.Rules, s.live(t).Rules, title)
	}
}

func TestAllowReturnsErrors(t *testing.T) {
	bad := errors.New("etcd has a bad day")
	for _, verb := range []string{"create", "update"} {
		s := newStage(homeNamespace())
		if verb == "update" {
			s = newStage(aliceRole())
			require.NoError(t, s.roles.Add(aliceRole()))
		}
		s.server.PrependReactor(verb, "clusterroles", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, bad })
		require.ErrorIs(t, s.Allow(t.Context(), alice, []string{"s-1"}), bad, verb)
	}
	s := newStage()
	require.ErrorContains(t, s.Allow(t.Context(), alice, []string{"s-1"}), home, "without its namespace it would never go")
	assert.Empty(t, s.writes())
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

func FuzzOnlyWhatIsNamedMayBeRead(f *testing.F) {
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
