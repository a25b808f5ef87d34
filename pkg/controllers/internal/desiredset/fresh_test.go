package desiredset

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// What a set has is the same whoever made it, but for what wrangler notes down for itself.
func TestAFreshSetIsMadeAsWranglerWouldMakeIt(t *testing.T) {
	h := newHouse(t, "fresh")
	h.addNamespace(t, h.ns+"-other")
	objects := func(name string) []runtime.Object {
		meta := metav1.ObjectMeta{Namespace: h.ns, Name: name, Labels: map[string]string{managed: "true"}}
		away := meta
		away.Namespace += "-other"
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}
		account := &corev1.ServiceAccount{ObjectMeta: meta}
		account.Annotations = map[string]string{"for": "somebody"}
		wide := metav1.ObjectMeta{Name: h.ns + "-" + name, Labels: meta.Labels}
		return []runtime.Object{
			account, h.role(name, "get"), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref}, &rbacv1.RoleBinding{ObjectMeta: away, RoleRef: ref},
			&rbacv1.ClusterRoleBinding{ObjectMeta: wide, RoleRef: ref},
		}
	}
	owner := h.owner(t, h.ns, "owner")

	require.NoError(t, h.Ensure(t.Context(), "ours", owner, objects("ours")...))
	require.NoError(t, h.apply(t.Context(), "wrangler", owner, objects("wrangler")))

	ours, wranglers := h.metaOf(t, "ours"), h.metaOf(t, "wrangler")
	require.Len(t, ours, 5)
	for n, made := range ours {
		want := wranglers[n]
		assert.NotEmpty(t, want.Annotations["objectset.rio.cattle.io/applied"])
		delete(want.Annotations, "objectset.rio.cattle.io/applied")
		want.Annotations[apply.LabelID], want.Labels[apply.LabelHash] = "ours", made.Labels[apply.LabelHash]
		assert.Equal(t, want.Labels, made.Labels)
		assert.Equal(t, want.Annotations, made.Annotations)
		assert.Equal(t, want.OwnerReferences, made.OwnerReferences)
	}
}

// metaOf reads what the objects of that name say of themselves: in the order of their kinds, the foreign namespace's last but one.
func (h *house) metaOf(t *testing.T, name string) (all []metav1.ObjectMeta) {
	t.Helper()
	options := metav1.GetOptions{}
	account, err := h.client.CoreV1().ServiceAccounts(h.ns).Get(t.Context(), name, options)
	require.NoError(t, err)
	binding, err := h.client.RbacV1().RoleBindings(h.ns).Get(t.Context(), name, options)
	require.NoError(t, err)
	away, err := h.client.RbacV1().RoleBindings(h.ns+"-other").Get(t.Context(), name, options)
	require.NoError(t, err)
	wide, err := h.client.RbacV1().ClusterRoleBindings().Get(t.Context(), h.ns+"-"+name, options)
	require.NoError(t, err)
	return append(all, account.ObjectMeta, h.get(t, name).ObjectMeta, binding.ObjectMeta, away.ObjectMeta, wide.ObjectMeta)
}

func TestTheRestOfASetThatWasCutOffIsMade(t *testing.T) {
	h := newHouse(t, "cut")
	owner := h.owner(t, h.ns, "owner")
	lost := h.role("b", "get")
	lost.Namespace = "no-such-namespace"
	require.ErrorContains(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get"), lost), "no-such-namespace")
	assert.Equal(t, []string{"a"}, h.names(t))

	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get"), h.role("b", "get")), "while the cache does not know of the first")
	assert.Equal(t, []string{"a", "b"}, h.names(t))
	h.settle(t)
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get"), h.role("b", "get"), h.role("c", "get")), "when it does")
	assert.Equal(t, []string{"a", "b", "c"}, h.names(t))
}

func TestWhatWasMadeWithoutWranglersCopyIsCorrected(t *testing.T) {
	h := newHouse(t, "corrected")
	owner := h.owner(t, h.ns, "owner")
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get"), h.role("b", "get")))
	h.settle(t)
	widened := h.get(t, "a")
	widened.Rules = append(widened.Rules, rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"secrets"}})
	_, err := h.client.RbacV1().Roles(h.ns).Update(t.Context(), widened, metav1.UpdateOptions{})
	require.NoError(t, err)
	h.settle(t)
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get")))
	assert.Equal(t, h.role("a", "get").Rules, h.get(t, "a").Rules, "what somebody added is taken away again")
	assert.Equal(t, []string{"a"}, h.names(t))
}

func TestASetWithAKindThatIsNotMadeDirectlyIsWranglers(t *testing.T) {
	set := marked(t, someOwner())
	_, role, _, _ := wantedSet()
	_, known, err := set.onAll(someOwner(), []runtime.Object{role, &corev1.Secret{}})
	require.NoError(t, err)
	assert.False(t, known, "it is left to wrangler")
	assert.Empty(t, role.OwnerReferences, "what is wanted is not changed")
}

func TestWhatABindingNamesIsMadeBeforeIt(t *testing.T) {
	account, role, binding, clusterBinding := wantedSet()
	other, further := role.DeepCopy(), binding.DeepCopy()
	assert.Equal(t, [][]runtime.Object{{account}, {role, other}, {binding, further}, {clusterBinding}},
		byKind([]runtime.Object{account, role, binding, other, further, clusterBinding}))
	assert.Empty(t, byKind(nil))
}

func TestNothingIsWrittenTwiceWhileTheCacheIsBehind(t *testing.T) {
	h := newHouse(t, "behind")
	owner := h.owner(t, h.ns, "owner")
	var before []string
	for n := range 20 { // the cache has some of them, none, or all
		require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get"), h.role("b", "get"), h.role("c", "get")))
		var now []string
		for _, name := range []string{"a", "b", "c"} {
			now = append(now, h.get(t, name).ResourceVersion)
		}
		if n > 0 {
			assert.Equal(t, before, now)
		}
		before = now
	}
}

func TestWhatIsThereOtherThanWantedIsCorrectedWhileTheCacheIsBehind(t *testing.T) {
	h := newHouse(t, "other")
	owner := h.owner(t, h.ns, "owner")
	set := marked(t, owner)
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get")))
	all, _, err := set.onAll(owner, []runtime.Object{h.role("a", "get"), h.role("a", "list")})
	require.NoError(t, err)
	is, err := h.createOne(t.Context(), set, owner, all[0])
	require.NoError(t, err)
	assert.True(t, is)
	is, err = h.createOne(t.Context(), set, owner, all[1])
	require.NoError(t, err)
	assert.False(t, is, "wrangler corrects it")
}
