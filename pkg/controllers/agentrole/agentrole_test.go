package agentrole

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	role    = "fleet-agent-bundle-deployment"
	binding = "fleet-content"
)

// installed returns the shared objects of a hub.
func installed(disableBundles bool) (objects []runtime.Object) {
	for _, role := range shared(disableBundles) {
		objects = append(objects, role)
	}
	return append(objects, contentReaders())
}

// writesOf returns the verbs and resources of the writes to a server.
func writesOf(server *fake.Clientset) (writes []string) {
	for _, action := range server.Actions() {
		if action.GetVerb() != "get" {
			writes = append(writes, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	return writes
}

func TestShared(t *testing.T) {
	group := []string{"fleet.cattle.io"}
	deployments := []rbacv1.PolicyRule{
		{Verbs: []string{"get", "list", "watch"}, APIGroups: group, Resources: []string{"bundledeployments"}},
		{Verbs: []string{"update", "patch"}, APIGroups: group, Resources: []string{"bundledeployments/status"}},
	}
	beside := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}}
	contents := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: group, Resources: []string{"contents"}}}
	for disableBundles, want := range map[bool]map[string][]rbacv1.PolicyRule{
		false: {"fleet-content": contents, role: deployments},
		true:  {"fleet-content": contents, "fleet-bundle-deployment": append(deployments, beside)},
	} {
		rules := map[string][]rbacv1.PolicyRule{}
		for _, role := range shared(disableBundles) {
			rules[role.Name] = role.Rules
		}
		assert.Equal(t, want, rules)
	}
	assert.Equal(t, []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "system:serviceaccounts"}}, contentReaders().Subjects)
}

func TestEnsure(t *testing.T) {
	for title, row := range map[string]struct {
		role    func(*rbacv1.ClusterRole)
		binding func(*rbacv1.ClusterRoleBinding)
		writes  []string
	}{
		"as they should be":   {},
		"somebody widened it": {role: func(r *rbacv1.ClusterRole) { r.Rules[0].Resources = []string{"*"} }, writes: []string{"update clusterroles"}},
		"somebody emptied it": {role: func(r *rbacv1.ClusterRole) { r.Rules = nil }, writes: []string{"update clusterroles"}},
		"others are added": {role: func(r *rbacv1.ClusterRole) {
			r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
		}, writes: []string{"update clusterroles"}},
		"no cache would see it": {role: func(r *rbacv1.ClusterRole) { r.Labels = nil }, writes: []string{"update clusterroles"}},
		"others may read": {binding: func(b *rbacv1.ClusterRoleBinding) { b.Subjects[0].Name = "system:authenticated" }, writes: []string{
			"delete clusterrolebindings", "create clusterrolebindings",
		}},
		"another role is bound": {binding: func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "view" }, writes: []string{
			"delete clusterrolebindings", "create clusterrolebindings",
		}},
	} {
		objects := installed(false)
		if row.role != nil {
			row.role(objects[1].(*rbacv1.ClusterRole))
		}
		if row.binding != nil {
			row.binding(objects[2].(*rbacv1.ClusterRoleBinding))
		}
		server := fake.NewClientset(objects...)
		require.NoError(t, Ensure(t.Context(), server, false), title)
		assert.Equal(t, row.writes, writesOf(server), title)
		live, err := server.RbacV1().ClusterRoles().Get(t.Context(), role, metav1.GetOptions{})
		require.NoError(t, err)
		assert.True(t, isAsWanted(live, shared(false)[1]), title)
		bound, err := server.RbacV1().ClusterRoleBindings().Get(t.Context(), binding, metav1.GetOptions{})
		require.NoError(t, err)
		assert.True(t, binds(bound, contentReaders()), title)
	}
	for _, disableBundles := range []bool{false, true} {
		server := fake.NewClientset()
		require.NoError(t, Ensure(t.Context(), server, disableBundles))
		assert.Equal(t, []string{"create clusterroles", "create clusterroles", "create clusterrolebindings"}, writesOf(server), "there are none")
	}
}

func TestOnRole(t *testing.T) {
	wide := shared(false)[1]
	wide.Rules = nil
	create := []string{"create clusterroles"}
	for title, row := range map[string]struct {
		key    string
		seen   *rbacv1.ClusterRole
		writes []string
	}{
		"it is gone":              {role, nil, create},
		"it was changed":          {role, wide, create},
		"it is right":             {role, shared(false)[1], nil},
		"another one was changed": {"cluster-admin", wide, nil},
		"another one is gone":     {"view", nil, nil},
	} {
		server := fake.NewClientset(shared(false)[0], contentReaders())
		_, err := onRole(&app.Context{Kubernetes: server, Passes: app.NewPasses(t.Context())})(row.key, row.seen)
		require.NoError(t, err, title)
		assert.Equal(t, row.writes, writesOf(server), title)
	}
}

func TestOnBinding(t *testing.T) {
	wide := contentReaders()
	wide.Subjects[0].Name = "system:authenticated"
	create := []string{"create clusterrolebindings"}
	for title, row := range map[string]struct {
		key    string
		seen   *rbacv1.ClusterRoleBinding
		writes []string
	}{
		"it is gone":              {binding, nil, create},
		"it was changed":          {binding, wide, create},
		"it is right":             {binding, contentReaders(), nil},
		"another one was changed": {"cluster-admin", wide, nil},
		"another one is gone":     {"view", nil, nil},
	} {
		server := fake.NewClientset(shared(true)[0], shared(true)[1])
		handle := onBinding(&app.Context{Kubernetes: server, Passes: app.NewPasses(t.Context()), DisableBundles: true})
		_, err := handle(row.key, row.seen)
		require.NoError(t, err, title)
		assert.Equal(t, row.writes, writesOf(server), title)
	}
}

func TestEnsureErrorNamesTheObject(t *testing.T) {
	for resource, name := range map[string]string{"clusterroles": "ClusterRole fleet-content", "clusterrolebindings": "ClusterRoleBinding fleet-content"} {
		server := fake.NewClientset()
		bad := errors.New("etcd has a bad day")
		server.PrependReactor("create", resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, bad })
		err := Ensure(t.Context(), server, false)
		require.ErrorIs(t, err, bad)
		assert.ErrorContains(t, err, name)
	}
}

func TestEnsureBesideAnotherHub(t *testing.T) {
	server := fake.NewClientset()
	server.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: action.GetResource().Resource}, role)
	})
	require.NoError(t, Ensure(t.Context(), server, false))
}

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
