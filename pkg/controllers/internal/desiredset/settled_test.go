package desiredset

import (
	"fmt"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

func someOwner() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "owner", UID: "uid"},
	}
}

func labelled(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{managed: "true"}}
}

// wantedSet is a set of every kind the hub has in sets.
func wantedSet() (*corev1.ServiceAccount, *rbacv1.Role, *rbacv1.RoleBinding, *rbacv1.ClusterRoleBinding) {
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "home", Name: "account"}}
	account := &corev1.ServiceAccount{ObjectMeta: labelled("home", "account")}
	account.Annotations = map[string]string{"for": "somebody"}
	return account,
		&rbacv1.Role{ObjectMeta: labelled("ns", "role"), Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, Resources: []string{"pods"}}}},
		&rbacv1.RoleBinding{ObjectMeta: labelled("ns", "role"), Subjects: subjects, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "role"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: labelled("", "wide"), Subjects: subjects, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"}}
}

// made is an object as wrangler makes it of a wanted one.
func made[T metav1.Object](t *testing.T, object T) T {
	t.Helper()
	labels, annotations, err := apply.GetLabelsAndAnnotations("set", someOwner())
	require.NoError(t, err)
	merged := map[string]string{"objectset.rio.cattle.io/applied": "H4sI"}
	for _, all := range []map[string]string{annotations, object.GetAnnotations()} {
		for key, value := range all {
			merged[key] = value
		}
	}
	object.SetAnnotations(merged)
	object.GetLabels()[apply.LabelHash] = labels[apply.LabelHash]
	if object.GetNamespace() == "ns" {
		object.SetOwnerReferences([]metav1.OwnerReference{{UID: "uid"}})
	}
	return object
}

func cachesOf(t *testing.T, objects ...metav1.Object) Sets {
	t.Helper()
	indexer := cache.NewIndexer(func(object any) (string, error) {
		m := object.(metav1.Object)
		return fmt.Sprintf("%T/%s/%s", object, m.GetNamespace(), m.GetName()), nil
	}, cache.Indexers{byHash: func(object any) ([]string, error) {
		return []string{object.(metav1.Object).GetLabels()[apply.LabelHash]}, nil
	}})
	for _, object := range objects {
		require.NoError(t, indexer.Add(object))
	}
	return Sets{indexers: []cache.Indexer{indexer}}
}

func marked(t *testing.T, owner runtime.Object) marks {
	t.Helper()
	set, err := marksOf("set", owner)
	require.NoError(t, err)
	return set
}

func TestASetIsSettledOnlyWhileAllOfItIsAsWanted(t *testing.T) {
	type set struct {
		account        *corev1.ServiceAccount
		role           *rbacv1.Role
		binding        *rbacv1.RoleBinding
		clusterBinding *rbacv1.ClusterRoleBinding
		more           []metav1.Object
	}
	for title, row := range map[string]struct {
		change  func(*set)
		settled bool
	}{
		"as it was made":                  {func(*set) {}, true},
		"with something of somebody's":    {func(s *set) { s.role.Labels["a"], s.account.Annotations["b"] = "x", "y" }, true},
		"other rules":                     {func(s *set) { s.role.Rules[0].Verbs = []string{"*"} }, false},
		"more rules":                      {func(s *set) { s.role.Rules = append(s.role.Rules, s.role.Rules[0]) }, false},
		"no rules":                        {func(s *set) { s.role.Rules = nil }, false},
		"another subject":                 {func(s *set) { s.binding.Subjects[0].Name = "other" }, false},
		"one more subject":                {func(s *set) { s.clusterBinding.Subjects = append(s.clusterBinding.Subjects, s.binding.Subjects[0]) }, false},
		"bound to another Role":           {func(s *set) { s.binding.RoleRef.Name = "other" }, false},
		"bound to another ClusterRole":    {func(s *set) { s.clusterBinding.RoleRef.Name = "cluster-admin" }, false},
		"a label is gone":                 {func(s *set) { delete(s.role.Labels, managed) }, false},
		"a label is another":              {func(s *set) { s.role.Labels[managed] = "false" }, false},
		"an annotation is gone":           {func(s *set) { delete(s.account.Annotations, "for") }, false},
		"whose it is":                     {func(s *set) { s.account.Annotations[apply.LabelName] = "other" }, false},
		"the owner reference is gone":     {func(s *set) { s.role.OwnerReferences = nil }, false},
		"it is owned by an earlier owner": {func(s *set) { s.role.OwnerReferences[0].UID = "earlier" }, false},
		"one is being deleted":            {func(s *set) { s.binding.DeletionTimestamp = &metav1.Time{} }, false},
		"one has another name":            {func(s *set) { s.clusterBinding.Name = "other" }, false},
		"one that is not wanted any more": {func(s *set) {
			s.more = append(s.more, &rbacv1.Role{ObjectMeta: *s.binding.ObjectMeta.DeepCopy()})
			s.more[0].SetName("old")
		}, false},
		"one that is not in its set":     {func(s *set) { s.account.Labels[apply.LabelHash] = "" }, false},
		"one of them instead of another": {func(s *set) { s.role.Name = "old" }, false},
	} {
		account, role, binding, clusterBinding := wantedSet()
		s := &set{account: made(t, account), role: made(t, role), binding: made(t, binding), clusterBinding: made(t, clusterBinding)}
		s.binding.Subjects = append([]rbacv1.Subject(nil), s.binding.Subjects...)
		row.change(s)
		sets := cachesOf(t, append(s.more, s.account, s.role, s.binding, s.clusterBinding)...)
		a, r, b, c := wantedSet()
		assert.Equal(t, row.settled, sets.settled(marked(t, someOwner()), someOwner(), []runtime.Object{a, r, b, c}), title)
	}
}

func TestWhatIsOfNoKnownKindIsNeverSettled(t *testing.T) {
	wanted := &corev1.Secret{ObjectMeta: labelled("ns", "s")}
	assert.False(t, cachesOf(t, made(t, wanted.DeepCopy())).settled(marked(t, someOwner()), someOwner(), []runtime.Object{wanted}))
	assert.False(t, Sets{indexers: []cache.Indexer{cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}}.settled(marked(t, someOwner()), someOwner(), nil), "without the index")
}

func TestASettledSetIsNotAppliedAgain(t *testing.T) {
	h := newHouse(t, "settled")
	owner := h.owner(t, h.ns, "owner")
	require.False(t, h.settled(marked(t, owner), owner, []runtime.Object{h.role("a", "get")}))
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get")))
	h.settle(t)
	assert.True(t, h.settled(marked(t, owner), owner, []runtime.Object{h.role("a", "get")}), "the caches have wrangler's index, and what the API server fills in counts for nothing")
	base := h.base
	h.base = nil // it would not survive being asked
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get")))
	h.base = base
	assert.False(t, h.settled(marked(t, owner), owner, []runtime.Object{h.role("a", "list")}))
	assert.False(t, h.settled(marked(t, owner), owner, nil))
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "list")))
	assert.Equal(t, []string{"list"}, h.get(t, "a").Rules[0].Verbs)
}
