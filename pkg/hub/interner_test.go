package hub

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// again is a string of its own, as each object that is decoded has them.
func again(s string) string { return strings.Clone(s) }

func someBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: again("cluster-a"), Name: again("binding"),
			Labels: map[string]string{again("managed"): again("true")}, Annotations: map[string]string{again("of"): again("somebody")},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: again("v1"), Kind: again("Owner"), Name: again("somebody"), UID: "uid"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		RoleRef:  rbacv1.RoleRef{APIGroup: again("rbac"), Kind: again("Role"), Name: again("reader")},
		Subjects: []rbacv1.Subject{{Kind: again("ServiceAccount"), Namespace: again("cluster-a"), Name: again("account")}},
	}
}

func someRole() *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: again("cluster-a"), Name: again("reader")},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{again("get")}, APIGroups: []string{again("")}, Resources: []string{again("secrets")}, ResourceNames: []string{again("x")}}},
	}
}

func TestCachesKeepWhatObjectsSayButManagedFields(t *testing.T) {
	w := newInterner(clock.RealClock{})
	want := someBinding()
	want.ManagedFields = nil
	got, err := w.trim(someBinding())
	require.NoError(t, err)
	assert.Equal(t, want, got)

	role, err := w.trim(someRole())
	require.NoError(t, err)
	assert.Equal(t, someRole(), role)

	for _, object := range []any{&rbacv1.ClusterRole{Rules: someRole().Rules}, &rbacv1.ClusterRoleBinding{RoleRef: want.RoleRef, Subjects: want.Subjects}} {
		trimmed, err := w.trim(object)
		require.NoError(t, err)
		assert.Equal(t, object, trimmed)
	}
	other, err := w.trim("no object")
	require.NoError(t, err)
	assert.Equal(t, "no object", other)
}

func TestEqualWordsOfDifferentObjectsAreKeptOnce(t *testing.T) {
	w := newInterner(clock.RealClock{})
	one, other, role := someBinding(), someBinding(), someRole()
	for _, object := range []any{one, other, role} {
		_, err := w.trim(object)
		require.NoError(t, err)
	}
	for _, same := range [][]string{
		{one.Namespace, other.Namespace, role.Namespace, one.Subjects[0].Namespace},
		{one.Annotations["of"], other.Annotations["of"], one.OwnerReferences[0].Name},
		{keyOf(one.Labels), keyOf(other.Labels)},
		{one.RoleRef.Kind, other.RoleRef.Kind},
		{one.Name, other.Name},
		{one.Subjects[0].Name, other.Subjects[0].Name},
	} {
		for _, s := range same[1:] {
			assert.Same(t, unsafe.StringData(same[0]), unsafe.StringData(s), same[0])
		}
	}
}

func keyOf(labels map[string]string) string {
	for key := range labels {
		return key
	}
	return ""
}

func TestWhoeverMakesKeysWithoutEndFillsNoMemory(t *testing.T) {
	w := newInterner(clock.RealClock{})
	for n := range 3 * mostKeys {
		key := fmt.Sprint("key-", n)
		assert.Equal(t, key, w.key(key))
	}
	assert.Len(t, w.keys, mostKeys)
	assert.Equal(t, "key-1", w.key("key-1"))
}
