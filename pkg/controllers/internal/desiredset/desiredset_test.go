package desiredset

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/rancher/lasso/pkg/cache"
	"github.com/rancher/lasso/pkg/client"
	"github.com/rancher/lasso/pkg/controller"
	"github.com/rancher/wrangler/v3/pkg/apply"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

const managed = "fleet.cattle.io/managed"

var configMapKind = corev1.SchemeGroupVersion.WithKind("ConfigMap")

// house is a set over caches like the hub's, which hold managed objects only.
type house struct {
	Sets
	client kubernetes.Interface
	roles  rbaccontrollers.RoleController
	ns     string
}

func newHouse(t *testing.T, purpose string) *house {
	t.Helper()
	namespace := purpose + "-" + rand.String(5)
	cfg := controlplane.Shared(t, "member").RESTConfig()
	clients, err := client.NewSharedClientFactory(cfg, nil)
	require.NoError(t, err)
	kinds := map[schema.GroupVersionKind]cache.TweakListOptionsFunc{}
	for _, kind := range []string{"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} {
		kinds[rbacv1.SchemeGroupVersion.WithKind(kind)] = func(o *metav1.ListOptions) { o.LabelSelector = managed + "=true" }
	}
	factory := controller.NewSharedControllerFactory(
		cache.NewSharedCachedFactory(clients, &cache.SharedCacheFactoryOptions{KindTweakList: kinds}), &controller.SharedControllerFactoryOptions{})
	base, err := apply.NewForConfig(cfg)
	require.NoError(t, err)
	rbac, core := rbaccontrollers.New(factory), corecontrollers.New(factory)
	kube := kubernetes.NewForConfigOrDie(cfg)
	h := &house{Sets: New(base, kube, core.ServiceAccount(), rbac.Role(), rbac.ClusterRole(), rbac.RoleBinding(), rbac.ClusterRoleBinding()), client: kube, roles: rbac.Role(), ns: namespace}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	require.NoError(t, factory.Start(ctx, 1))
	h.addNamespace(t, namespace)
	return h
}

func (h *house) addNamespace(t *testing.T, name string) {
	t.Helper()
	_, err := h.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// owner is a ConfigMap that exists, so that Kubernetes does not collect what it owns.
func (h *house) owner(t *testing.T, namespace, name string) *corev1.ConfigMap {
	t.Helper()
	made, err := h.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	made.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	return made
}

func (h *house) role(name, verb string) *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: name, Labels: map[string]string{managed: "true"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	}
}

func (h *house) get(t *testing.T, name string) *rbacv1.Role {
	t.Helper()
	role, err := h.client.RbacV1().Roles(h.ns).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return role
}

// settle waits until the cache has what the API server has.
func (h *house) settle(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		live, err := h.client.RbacV1().Roles(h.ns).List(context.Background(), metav1.ListOptions{LabelSelector: managed + "=true"})
		cached := h.roles.Informer().GetIndexer().ListKeys()
		if err != nil {
			return false
		}
		seen := 0
		for i := range live.Items {
			object, found, _ := h.roles.Informer().GetStore().GetByKey(h.ns + "/" + live.Items[i].Name)
			if found && object.(*rbacv1.Role).ResourceVersion == live.Items[i].ResourceVersion {
				seen++
			}
		}
		ours := 0
		for _, key := range cached {
			if len(key) > len(h.ns) && key[:len(h.ns)+1] == h.ns+"/" {
				ours++
			}
		}
		return seen == len(live.Items) && ours == seen
	}, 2*time.Minute, 10*time.Millisecond)
}

func (h *house) names(t *testing.T) (names []string) {
	t.Helper()
	live, err := h.client.RbacV1().Roles(h.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range live.Items {
		names = append(names, live.Items[i].Name)
	}
	return names
}

func TestSetIsMadeKeptPrunedAndRemoved(t *testing.T) {
	h := newHouse(t, "life")
	owner := h.owner(t, h.ns, "owner")
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get"), h.role("b", "get")))
	assert.Equal(t, []string{"a", "b"}, h.names(t))
	a := h.get(t, "a")
	require.Len(t, a.OwnerReferences, 1)
	assert.Equal(t, owner.UID, a.OwnerReferences[0].UID)
	h.settle(t)

	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get"), h.role("b", "get")))
	assert.Equal(t, a.ResourceVersion, h.get(t, "a").ResourceVersion, "what is right is not written again")

	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "list")))
	assert.Equal(t, []string{"a"}, h.names(t), "what is no longer wanted goes")
	assert.Equal(t, []string{"list"}, h.get(t, "a").Rules[0].Verbs, "what is wrong is corrected")
	h.settle(t)

	require.NoError(t, h.Remove(t.Context(), "set", h.ns+"/owner", configMapKind))
	assert.Empty(t, h.names(t))
	h.settle(t)
	require.NoError(t, h.Remove(t.Context(), "set", h.ns+"/owner", configMapKind), "what is gone is no error")
}

func TestObjectsOfOthersAreRefusedAndLeftUntouched(t *testing.T) {
	h := newHouse(t, "foreign")
	owner, other := h.owner(t, h.ns, "owner"), h.owner(t, h.ns, "other")
	byHand := h.role("by-hand", "delete")
	byHand.Labels = nil
	labelled := h.role("labelled", "delete")
	for _, role := range []*rbacv1.Role{byHand, labelled} {
		_, err := h.client.RbacV1().Roles(h.ns).Create(t.Context(), role, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, h.Ensure(t.Context(), "set", other, h.role("of-other", "delete")))
	h.settle(t)

	for _, name := range []string{"by-hand", "labelled", "of-other"} {
		t.Run(name, func(t *testing.T) {
			before := h.get(t, name)
			err := h.Ensure(t.Context(), "set", owner, h.role(name, "get"))
			var foreign *ForeignError
			require.ErrorAs(t, err, &foreign)
			assert.Equal(t, &ForeignError{Kind: "Role", Namespace: h.ns, Name: name}, foreign)
			assert.ErrorContains(t, err, "Role "+h.ns+"/"+name+" exists and is not of this registration; rename or delete it")
			assert.Equal(t, before, h.get(t, name))
		})
	}
}

func TestRefusedNameIsTakenOnceItIsFree(t *testing.T) {
	h := newHouse(t, "freed")
	owner := h.owner(t, h.ns, "owner")
	_, err := h.client.RbacV1().Roles(h.ns).Create(t.Context(), h.role("a", "delete"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Error(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get")))
	require.NoError(t, h.client.RbacV1().Roles(h.ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	require.NoError(t, h.Ensure(t.Context(), "set", owner, h.role("a", "get")))
	assert.Equal(t, []string{"get"}, h.get(t, "a").Rules[0].Verbs)
}

func TestClusterScopedObjectOfSomebodyElseIsNamedWithoutANamespace(t *testing.T) {
	h := newHouse(t, "scoped")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: h.ns + "-taken"}}
	_, err := h.client.RbacV1().ClusterRoles().Create(t.Context(), role.DeepCopy(), metav1.CreateOptions{})
	require.NoError(t, err)
	role.Labels = map[string]string{managed: "true"}
	err = h.Ensure(t.Context(), "set", h.owner(t, h.ns, "owner"), role)
	require.ErrorContains(t, err, "ClusterRole "+h.ns+"-taken exists")
}

func TestObjectsAnotherReleaseMadeForTheOwnerAreAdopted(t *testing.T) {
	h := newHouse(t, "adopted")
	owner := h.owner(t, h.ns, "owner")
	require.NoError(t, h.Ensure(t.Context(), "old-set", owner, h.role("a", "delete")))
	h.settle(t)
	uid := h.get(t, "a").UID
	require.NoError(t, h.Ensure(t.Context(), "new-set", owner, h.role("a", "get")))
	a := h.get(t, "a")
	assert.Equal(t, uid, a.UID, "it is changed, not made again")
	assert.Equal(t, []string{"get"}, a.Rules[0].Verbs)
	assert.Equal(t, "new-set", a.Annotations[apply.LabelID])
	h.settle(t)
	require.NoError(t, h.Remove(t.Context(), "new-set", h.ns+"/owner", configMapKind))
	assert.Empty(t, h.names(t))
}

// wrangler's hash joins the owner's name and namespace without a separator, so "ax" in "n" and "a" in "xn" read alike.
func TestOwnersWhoseNamesRunTogetherDoNotPruneEachOther(t *testing.T) {
	h := newHouse(t, "x")
	h.addNamespace(t, "x"+h.ns)
	one, two := h.owner(t, h.ns, "ax"), h.owner(t, "x"+h.ns, "a")
	ensure := func(owner *corev1.ConfigMap, objects ...runtime.Object) {
		t.Helper()
		require.NoError(t, h.Ensure(t.Context(), registration.OwnedSetID("set", owner.Namespace, owner.Name), owner, objects...))
		h.settle(t)
	}
	labels, _, err := apply.GetLabelsAndAnnotations("set", one)
	require.NoError(t, err)
	same, _, err := apply.GetLabelsAndAnnotations("set", two)
	require.NoError(t, err)
	require.Equal(t, labels, same, "the two owners collide, as this test is about")

	ensure(one, h.role("of-one", "get"))
	ensure(two, h.role("of-two", "get"))
	assert.Equal(t, []string{"of-one", "of-two"}, h.names(t))
	require.NoError(t, h.Remove(t.Context(), registration.OwnedSetID("set", h.ns, "ax"), h.ns+"/ax", configMapKind))
	assert.Equal(t, []string{"of-two"}, h.names(t))
}

func TestServerThatRefusesIsAnErrorAndNoForeignObject(t *testing.T) {
	h := newHouse(t, "refused")
	lost := h.role("a", "get")
	lost.Namespace = "no-such-namespace"
	err := h.Ensure(t.Context(), "set", h.owner(t, h.ns, "owner"), lost)
	require.ErrorContains(t, err, "no-such-namespace")
	var foreign *ForeignError
	assert.NotErrorAs(t, err, &foreign)
}
