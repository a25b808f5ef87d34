package rightsdigest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

type object interface {
	metav1.Object
	runtime.Object
}

func role() *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"a"}},
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}},
	}}
}

func clusterRole() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{Rules: role().Rules} }

func binding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "ns", Name: "account"}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "r"},
	}
}

func clusterBinding() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{Subjects: binding().Subjects, RoleRef: binding().RoleRef}
}

func changed[T object](object T, change func(T)) T {
	change(object)
	return object
}

func TestEqual(t *testing.T) {
	for what, row := range map[string]struct {
		object, wanted object
		equal          bool
	}{
		"Role":                  {role(), role(), true},
		"Role, other metadata":  {changed(role(), func(r *rbacv1.Role) { r.Name, r.Labels = "x", map[string]string{"a": "b"} }), role(), true},
		"Role, an empty list":   {changed(role(), func(r *rbacv1.Role) { r.Rules[1].Resources = []string{} }), role(), true},
		"Role, another verb":    {changed(role(), func(r *rbacv1.Role) { r.Rules[0].Verbs[0] = "*" }), role(), false},
		"Role, joined verbs":    {changed(role(), func(r *rbacv1.Role) { r.Rules[0].Verbs = []string{"getlist"} }), role(), false},
		"Role, no name":         {changed(role(), func(r *rbacv1.Role) { r.Rules[0].ResourceNames = nil }), role(), false},
		"Role, an empty name":   {changed(role(), func(r *rbacv1.Role) { r.Rules[0].ResourceNames = append(r.Rules[0].ResourceNames, "") }), role(), false},
		"Role, one rule less":   {changed(role(), func(r *rbacv1.Role) { r.Rules = r.Rules[:1] }), role(), false},
		"Role, no rules":        {changed(role(), func(r *rbacv1.Role) { r.Rules = nil }), role(), false},
		"Role, no rules wanted": {role(), &rbacv1.Role{}, false},
		"Role, empty rules":     {&rbacv1.Role{Rules: []rbacv1.PolicyRule{}}, &rbacv1.Role{}, true},
		"Role, an empty rule":   {&rbacv1.Role{Rules: []rbacv1.PolicyRule{{}}}, &rbacv1.Role{}, false},

		"ClusterRole":            {clusterRole(), clusterRole(), true},
		"ClusterRole, aggregate": {changed(clusterRole(), func(r *rbacv1.ClusterRole) { r.AggregationRule = &rbacv1.AggregationRule{} }), clusterRole(), false},
		"ClusterRole, no rules":  {&rbacv1.ClusterRole{}, clusterRole(), false},

		"RoleBinding":                  {binding(), binding(), true},
		"RoleBinding, another subject": {changed(binding(), func(b *rbacv1.RoleBinding) { b.Subjects[0].Name = "x" }), binding(), false},
		"RoleBinding, no subject":      {changed(binding(), func(b *rbacv1.RoleBinding) { b.Subjects = nil }), binding(), false},
		"RoleBinding, another role":    {changed(binding(), func(b *rbacv1.RoleBinding) { b.RoleRef.Name = "x" }), binding(), false},

		"ClusterRoleBinding":                   {clusterBinding(), clusterBinding(), true},
		"ClusterRoleBinding, one more subject": {changed(clusterBinding(), func(b *rbacv1.ClusterRoleBinding) { b.Subjects = append(b.Subjects, rbacv1.Subject{}) }), clusterBinding(), false},
		"ClusterRoleBinding, another role":     {changed(clusterBinding(), func(b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "x" }), clusterBinding(), false},
	} {
		t.Run(what, func(t *testing.T) {
			assert.Equal(t, row.equal, Equal(row.object, row.wanted), "from the API server")
			Reduce(row.object)
			assert.Equal(t, row.equal, Equal(row.object, row.wanted), "from a cache")
			before := row.object.DeepCopyObject()
			Reduce(row.object)
			assert.Equal(t, before, row.object, "a second time")
			encoded, err := json.Marshal(row.object)
			require.NoError(t, err)
			assert.NotContains(t, string(encoded), "get")
			assert.NotContains(t, string(encoded), "account")
			assert.NotContains(t, string(encoded), "aggregationRule")
		})
	}
}

func TestReduce(t *testing.T) {
	account, other := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, binding()
	Reduce(account)
	assert.Equal(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, account)
	Reduce(other)
	assert.Equal(t, binding().RoleRef, other.RoleRef)
}
