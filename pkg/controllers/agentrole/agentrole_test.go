package agentrole

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/controllers/app"
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
