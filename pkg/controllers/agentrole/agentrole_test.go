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
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/controllers/app"
)

const role = "fleet-agent-bundle-deployment"

func TestEnsure(t *testing.T) {
	changed := func(change func(*rbacv1.ClusterRole)) *rbacv1.ClusterRole {
		r := wanted()
		change(r)
		return r
	}
	for title, row := range map[string]struct {
		before *rbacv1.ClusterRole
		writes []string
	}{
		"there is none":       {nil, []string{"create"}},
		"as it should be":     {wanted(), nil},
		"somebody widened it": {changed(func(r *rbacv1.ClusterRole) { r.Rules[0].Resources = []string{"*"} }), []string{"update"}},
		"somebody emptied it": {changed(func(r *rbacv1.ClusterRole) { r.Rules = nil }), []string{"update"}},
		"others are added": {changed(func(r *rbacv1.ClusterRole) {
			r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
		}), []string{"update"}},
		"no cache would see it": {changed(func(r *rbacv1.ClusterRole) { r.Labels = nil }), []string{"update"}},
	} {
		server := fake.NewClientset()
		if row.before != nil {
			server = fake.NewClientset(row.before)
		}
		require.NoError(t, Ensure(t.Context(), server), title)
		assert.Equal(t, row.writes, writesOf(server), title)
		live, err := server.RbacV1().ClusterRoles().Get(t.Context(), role, metav1.GetOptions{})
		require.NoError(t, err)
		assert.True(t, isRight(live), title)
	}
}

func writesOf(server *fake.Clientset) (verbs []string) {
	for _, action := range server.Actions() {
		if action.GetVerb() != "get" {
			verbs = append(verbs, action.GetVerb())
		}
	}
	return verbs
}

func TestHandler(t *testing.T) {
	wide := wanted()
	wide.Rules = nil
	for title, row := range map[string]struct {
		key    string
		seen   *rbacv1.ClusterRole
		writes []string
	}{
		"it is gone":              {role, nil, []string{"create"}},
		"it was changed":          {role, wide, []string{"create"}},
		"it is right":             {role, wanted(), nil},
		"another one was changed": {"cluster-admin", wide, nil},
		"another one is gone":     {"view", nil, nil},
	} {
		server := fake.NewClientset()
		handle := handler(&app.Context{Kubernetes: server, Passes: app.NewPasses(t.Context())})
		_, err := handle(row.key, row.seen)
		require.NoError(t, err, title)
		assert.Equal(t, row.writes, writesOf(server), title)
	}
}

func TestEnsureErrorNamesTheClusterRole(t *testing.T) {
	server := fake.NewClientset()
	bad := errors.New("etcd has a bad day")
	server.PrependReactor("create", "clusterroles", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, bad })
	err := Ensure(t.Context(), server)
	require.ErrorIs(t, err, bad)
	assert.ErrorContains(t, err, role)
}

func TestEnsureBesideAnotherHub(t *testing.T) {
	server := fake.NewClientset()
	server.PrependReactor("create", "clusterroles", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewAlreadyExists(rbacv1.Resource("clusterroles"), role)
	})
	require.NoError(t, Ensure(t.Context(), server))
}
