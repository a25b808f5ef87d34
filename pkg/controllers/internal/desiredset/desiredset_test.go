package desiredset

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/rightsdigest"
	"github.com/muster-fleet/muster/pkg/registration"
)

const managed = "fleet.cattle.io/managed"

var errTest = errors.New("the API server is overloaded")

// scene is an API server, and caches that are behind it until sync is called.
type scene struct {
	Sets
	server *fake.Clientset
}

func newScene(t *testing.T, objects ...runtime.Object) *scene {
	s := &scene{server: fake.NewClientset(objects...)}
	s.sync(t)
	return s
}

// sync fills the caches with the labelled objects, and forgets the requests.
func (s *scene) sync(t *testing.T) {
	t.Helper()
	f := informers.NewSharedInformerFactoryWithOptions(s.server, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = managed + "=true" }))
	core, rbac := f.Core().V1(), f.Rbac().V1()
	for range 2 { // controllers share caches
		s.Sets = New(s.server, core.ServiceAccounts().Informer(), f.Coordination().V1().Leases().Informer(), rbac.Roles().Informer(), rbac.RoleBindings().Informer(), rbac.ClusterRoleBindings().Informer())
	}
	for _, informer := range []cache.SharedIndexInformer{rbac.Roles().Informer(), rbac.RoleBindings().Informer(), rbac.ClusterRoleBindings().Informer()} {
		require.NoError(t, informer.SetTransform(func(object any) (any, error) { // as in the caches of the hub
			rightsdigest.Reduce(object.(metav1.Object))
			return object, nil
		}))
	}
	ctx, stop := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	stop()
	f.Shutdown()
	s.server.ClearActions()
}

// requests returns the requests since the last sync.
func (s *scene) requests() (all []string) {
	for _, action := range s.server.Actions() {
		all = append(all, action.GetVerb()+" "+action.GetResource().Resource)
	}
	return all
}

func (s *scene) role(t *testing.T, name string) *rbacv1.Role {
	t.Helper()
	role, err := s.server.RbacV1().Roles("ns").Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return role
}

func someOwner(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "owner-uid"},
	}
}

func labelled(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{managed: "true"}}
}

func someRole(name, verb string) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: labelled("ns", name), Rules: []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
}

// oneOfEach is a set of each kind. The ServiceAccount is in another namespace than the owner.
func oneOfEach() (*corev1.ServiceAccount, *rbacv1.Role, *rbacv1.RoleBinding, *rbacv1.ClusterRoleBinding) {
	agent := rbacv1.Subject{Kind: "ServiceAccount", Namespace: "home", Name: "account"}
	account := &corev1.ServiceAccount{ObjectMeta: labelled("home", "account")}
	account.Annotations = map[string]string{"for": "somebody"}
	return account, someRole("role", "get"),
		&rbacv1.RoleBinding{ObjectMeta: labelled("ns", "role"), Subjects: []rbacv1.Subject{agent}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "role"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: labelled("", "wide"), Subjects: []rbacv1.Subject{agent}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"}}
}

func wantedSet() []runtime.Object {
	account, role, binding, clusterBinding := oneOfEach()
	return []runtime.Object{clusterBinding, binding, role, account}
}

func TestEnsureAndRemove(t *testing.T) {
	s, owner := newScene(t), someOwner("ns", "owner")
	require.NoError(t, s.Ensure(t.Context(), "set", owner, wantedSet()...))
	assert.Equal(t, []string{"create serviceaccounts", "create roles", "create rolebindings", "create clusterrolebindings"}, s.requests(),
		"what a binding names is created before it")
	role := s.role(t, "role")
	assert.Equal(t, map[string]string{managed: "true", "objectset.rio.cattle.io/hash": "e8cb2db873112d2e4d46c34825286b486f7af1d2"}, role.Labels)
	assert.Equal(t, map[string]string{
		"objectset.rio.cattle.io/id": "set", "objectset.rio.cattle.io/owner-gvk": "/v1, Kind=ConfigMap",
		"objectset.rio.cattle.io/owner-name": "owner", "objectset.rio.cattle.io/owner-namespace": "ns",
	}, role.Annotations, "as wrangler's apply has it")
	assert.Len(t, role.OwnerReferences, 1)
	assert.Equal(t, owner.UID, role.OwnerReferences[0].UID)
	account, err := s.server.CoreV1().ServiceAccounts("home").Get(t.Context(), "account", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, account.OwnerReferences, "an owner reference into another namespace is not allowed")
	assert.Equal(t, "somebody", account.Annotations["for"])

	s.sync(t)
	require.NoError(t, s.Ensure(t.Context(), "set", owner, wantedSet()...))
	assert.Empty(t, s.requests(), "as wanted")

	require.NoError(t, s.Ensure(t.Context(), "set", owner, wantedSet()[3]))
	assert.Equal(t, []string{"delete clusterrolebindings", "delete rolebindings", "delete roles"}, s.requests())
	for _, action := range s.server.Actions() {
		assert.NotNil(t, action.(kubetesting.DeleteActionImpl).DeleteOptions.Preconditions.UID, "it deletes no other object of that name")
	}
	require.NoError(t, s.Remove(t.Context(), "set", "ns/owner", corev1.SchemeGroupVersion.WithKind("ConfigMap")),
		"the cache still shows objects that are gone")
	s.sync(t)
	require.NoError(t, s.Remove(t.Context(), "set", "ns/owner", corev1.SchemeGroupVersion.WithKind("ConfigMap")))
	assert.Empty(t, s.requests(), "nothing is left")
}

func TestEnsureCorrects(t *testing.T) {
	type set struct {
		account        *corev1.ServiceAccount
		role           *rbacv1.Role
		binding        *rbacv1.RoleBinding
		clusterBinding *rbacv1.ClusterRoleBinding
	}
	for title, row := range map[string]struct {
		change   func(*set)
		requests []string
	}{
		"as it was created":                   {func(*set) {}, nil},
		"a label and an annotation of others": {func(s *set) { s.role.Labels["a"], s.account.Annotations["b"] = "x", "y" }, nil},
		"other rules":                         {func(s *set) { s.role.Rules[0].Verbs = []string{"*"} }, []string{"patch roles"}},
		"more rules":                          {func(s *set) { s.role.Rules = append(s.role.Rules, s.role.Rules[0]) }, []string{"patch roles"}},
		"no rules":                            {func(s *set) { s.role.Rules = nil }, []string{"patch roles"}},
		"another subject":                     {func(s *set) { s.binding.Subjects[0].Name = "other" }, []string{"patch rolebindings"}},
		"one more subject": {func(s *set) {
			s.clusterBinding.Subjects = append(s.clusterBinding.Subjects, s.binding.Subjects[0])
		}, []string{"patch clusterrolebindings"}},
		"another Role":        {func(s *set) { s.binding.RoleRef.Name = "other" }, []string{"patch rolebindings"}},
		"another ClusterRole": {func(s *set) { s.clusterBinding.RoleRef.Name = "cluster-admin" }, []string{"patch clusterrolebindings"}},
		"a label is gone, so that the cache does not have it": {
			func(s *set) { delete(s.role.Labels, managed) }, []string{"create roles", "get roles", "patch roles"},
		},
		"the label of the set is gone":         {func(s *set) { delete(s.role.Labels, apply.LabelHash) }, []string{"create roles", "get roles", "patch roles"}},
		"an annotation is gone":                {func(s *set) { delete(s.account.Annotations, "for") }, []string{"patch serviceaccounts"}},
		"the annotation of the set is another": {func(s *set) { s.account.Annotations[apply.LabelID] = "x" }, []string{"patch serviceaccounts"}},
		"no owner reference":                   {func(s *set) { s.role.OwnerReferences = nil }, []string{"patch roles"}},
		"an earlier owner of that name":        {func(s *set) { s.role.OwnerReferences[0].UID = "earlier" }, []string{"patch roles"}},
	} {
		t.Run(title, func(t *testing.T) {
			s, owner, is := newScene(t), someOwner("ns", "owner"), &set{}
			require.NoError(t, s.Ensure(t.Context(), "set", owner, wantedSet()...))
			is.account, is.role, is.binding, is.clusterBinding = oneOfEach()
			for _, object := range []apiObject{is.account, is.role, is.binding, is.clusterBinding} {
				marks, err := marksOf("set", owner)
				require.NoError(t, err)
				marks.mark(object)
				object.SetUID("uid")
				object.SetResourceVersion("7")
			}
			row.change(is)
			s.server = fake.NewClientset(is.account, is.role, is.binding, is.clusterBinding)
			s.sync(t)
			require.NoError(t, s.Ensure(t.Context(), "set", owner, wantedSet()...))
			assert.Equal(t, row.requests, s.requests())
			for _, action := range s.server.Actions() {
				if patch, ok := action.(kubetesting.PatchAction); ok {
					assert.Contains(t, string(patch.GetPatch()), `"resourceVersion":"7","uid":"uid"`, "it changes only the version that was compared")
					assert.NotContains(t, string(patch.GetPatch()), "selfLink")
				}
			}
			s.hasRights(t)
			s.sync(t)
			require.NoError(t, s.Ensure(t.Context(), "set", owner, wantedSet()...))
			assert.Empty(t, s.requests(), "once is enough")
		})
	}
}

// hasRights checks that the objects on the API server grant what oneOfEach does, and not what the caches have instead.
func (s *scene) hasRights(t *testing.T) {
	t.Helper()
	_, role, binding, clusterBinding := oneOfEach()
	assert.Equal(t, role.Rules, s.role(t, "role").Rules)
	live, err := s.server.RbacV1().RoleBindings("ns").Get(t.Context(), "role", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, binding.Subjects, live.Subjects)
	assert.Equal(t, binding.RoleRef, live.RoleRef)
	wide, err := s.server.RbacV1().ClusterRoleBindings().Get(t.Context(), "wide", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, clusterBinding.Subjects, wide.Subjects)
	assert.Equal(t, clusterBinding.RoleRef, wide.RoleRef)
}

// The cache has a digest instead of the rules that are removed.
func TestEnsureNoRules(t *testing.T) {
	s, owner := newScene(t), someOwner("ns", "owner")
	require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("a", "get")))
	s.sync(t)
	none := someRole("a", "get")
	none.Rules = nil
	require.NoError(t, s.Ensure(t.Context(), "set", owner, none))
	assert.Equal(t, []string{"patch roles"}, s.requests())
	assert.Empty(t, s.role(t, "a").Rules)
}

// Sets share the values of the index: each would take 300 bytes.
func TestSetsShareIndexValues(t *testing.T) {
	const owners = 300
	s := newScene(t)
	for n := range owners {
		require.NoError(t, s.Ensure(t.Context(), "set", someOwner("ns", fmt.Sprint("owner-", n)), someRole(fmt.Sprint("role-", n), "get")))
	}
	s.sync(t)
	roles := s.kinds[2].(objects[*rbacv1.Role]).cached
	assert.Len(t, roles.List(), owners)
	assert.LessOrEqual(t, len(roles.ListIndexFuncValues(byHash)), 256)
	for n := range owners {
		require.NoError(t, s.Ensure(t.Context(), "set", someOwner("ns", fmt.Sprint("owner-", n)), someRole(fmt.Sprint("role-", n), "get")))
	}
	assert.Empty(t, s.requests(), "no set has objects of another one")
	require.NoError(t, s.Ensure(t.Context(), "set", someOwner("ns", "owner-0")))
	assert.Equal(t, []string{"delete roles"}, s.requests())
}

func TestEnsureBehindTheCache(t *testing.T) {
	s, owner := newScene(t), someOwner("ns", "owner")
	require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("a", "get")))
	s.server.ClearActions()
	require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("a", "get"), someRole("b", "get")))
	assert.ElementsMatch(t, []string{"create roles", "get roles", "create roles"}, s.requests(), "what the cache does not show is not written again")
	require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("a", "list")))
	assert.Equal(t, []string{"list"}, s.role(t, "a").Rules[0].Verbs, "and corrected")
}

func TestEnsureForeign(t *testing.T) {
	other, err := marksOf("set", someOwner("ns", "other"))
	require.NoError(t, err)
	own, err := marksOf("set", someOwner("ns", "owner"))
	require.NoError(t, err)
	for title, change := range map[string]func(*rbacv1.Role){
		"created by hand":                      func(r *rbacv1.Role) { r.Labels = nil },
		"by hand, with the label":              func(*rbacv1.Role) {},
		"of another owner":                     func(r *rbacv1.Role) { other.mark(r) },
		"of another owner, in the owner's set": func(r *rbacv1.Role) { other.mark(r); r.Labels[apply.LabelHash] = own.labels[apply.LabelHash] },
	} {
		t.Run(title, func(t *testing.T) {
			taken, owner := someRole("a", "delete"), someOwner("ns", "owner")
			change(taken)
			s := newScene(t, taken)
			err := s.Ensure(t.Context(), "set", owner, someRole("a", "get"))
			var foreign *ForeignError
			require.ErrorAs(t, err, &foreign)
			assert.Equal(t, &ForeignError{Kind: "Role", Namespace: "ns", Name: "a"}, foreign)
			require.EqualError(t, err, "Role ns/a exists and was not created for this object; rename or delete it")
			assert.Equal(t, taken.Rules, s.role(t, "a").Rules, "it is left as it is")

			require.NoError(t, s.server.RbacV1().Roles("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}))
			s.sync(t)
			require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("a", "get")), "the name is free")
		})
	}
	assert.EqualError(t, &ForeignError{Kind: "ClusterRole", Name: "a"}, "ClusterRole a exists and was not created for this object; rename or delete it")
}

func TestEnsureAdoptsFromAnotherRelease(t *testing.T) {
	s, owner := newScene(t), someOwner("ns", "owner")
	require.NoError(t, s.Ensure(t.Context(), "old-set", owner, someRole("a", "delete")))
	s.sync(t)
	require.NoError(t, s.Ensure(t.Context(), "new-set", owner, someRole("a", "get")))
	assert.Equal(t, []string{"create roles", "get roles", "patch roles"}, s.requests(), "it is not deleted and created again")
	a := s.role(t, "a")
	assert.Equal(t, []string{"get"}, a.Rules[0].Verbs)
	assert.Equal(t, "new-set", a.Annotations[apply.LabelID])
}

func TestEnsureErrors(t *testing.T) {
	fails := func(s *scene, verb, resource string, err error) {
		s.server.PrependReactor(verb, resource, func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	}
	t.Run("rights that are not wanted end even if a wanted object cannot be created", func(t *testing.T) {
		s, owner := newScene(t), someOwner("ns", "owner")
		require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("old", "*")))
		s.sync(t)
		fails(s, "create", "roles", errTest)
		err := s.Ensure(t.Context(), "set", owner, wantedSet()...)
		require.ErrorIs(t, err, errTest)
		assert.Equal(t, []string{"create serviceaccounts", "create roles", "delete roles"}, s.requests(), "no binding without its Role")
		assert.NotErrorAs(t, err, new(*ForeignError))
	})
	for title, row := range map[string]struct{ verb, resource string }{
		"reading an object that exists": {"get", "roles"}, "correcting": {"patch", "roles"}, "deleting": {"delete", "rolebindings"},
	} {
		t.Run(title, func(t *testing.T) {
			s, owner := newScene(t), someOwner("ns", "owner")
			require.NoError(t, s.Ensure(t.Context(), "set", owner, wantedSet()...))
			if row.verb == "delete" {
				s.sync(t)
			}
			fails(s, row.verb, row.resource, errTest)
			require.ErrorIs(t, s.Ensure(t.Context(), "set", owner, someRole("role", "list")), errTest)
		})
	}
	t.Run("several", func(t *testing.T) {
		s, owner := newScene(t), someOwner("ns", "owner")
		require.NoError(t, s.Ensure(t.Context(), "set", owner, wantedSet()...))
		s.sync(t)
		fails(s, "delete", "roles", apierrors.NewForbidden(schema.GroupResource{}, "role", errors.New("no")))
		fails(s, "delete", "rolebindings", errTest)
		err := s.Remove(t.Context(), "set", "ns/owner", corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		require.ErrorIs(t, err, errTest)
		require.ErrorContains(t, err, "forbidden")
		assert.Contains(t, s.requests(), "delete serviceaccounts", "the others are deleted all the same")
	})
}

// wrangler's hash joins the name and the namespace of the owner without a separator: "ax" in "n" and "a" in "xn" have the same.
func TestSetsOfOwnersWhoseNamesRunTogether(t *testing.T) {
	s, one, two := newScene(t), someOwner("n", "ax"), someOwner("xn", "a")
	id := func(o *corev1.ConfigMap) string { return registration.OwnedSetID("set", o.Namespace, o.Name) }
	of := func(setID string, o *corev1.ConfigMap) string {
		marks, err := marksOf(setID, o)
		require.NoError(t, err)
		return marks.labels[apply.LabelHash]
	}
	require.Equal(t, of("set", one), of("set", two))
	require.NotEqual(t, of(id(one), one), of(id(two), two))

	require.NoError(t, s.Ensure(t.Context(), id(one), one, someRole("of-one", "get")))
	require.NoError(t, s.Ensure(t.Context(), id(two), two, someRole("of-two", "get")))
	s.sync(t)
	require.NoError(t, s.Remove(t.Context(), id(one), "n/ax", corev1.SchemeGroupVersion.WithKind("ConfigMap")))
	assert.Equal(t, []string{"delete roles"}, s.requests())
	s.role(t, "of-two")
}

// A user who may change the labels of a Role must not be able to make the hub delete it.
func TestPruneForeign(t *testing.T) {
	s, owner := newScene(t), someOwner("ns", "owner")
	marks, err := marksOf("set", owner)
	require.NoError(t, err)
	for name, annotations := range map[string]map[string]string{
		"label-only":    nil,
		"another-owner": {apply.LabelGVK: marks.annotations[apply.LabelGVK], apply.LabelNamespace: "ns", apply.LabelName: "another"},
	} {
		foreign := someRole(name, "get")
		foreign.Labels, foreign.Annotations = map[string]string{managed: "true", apply.LabelHash: marks.labels[apply.LabelHash]}, annotations
		_, err = s.server.RbacV1().Roles(foreign.Namespace).Create(t.Context(), foreign, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("own", "get")))
	s.sync(t)
	require.NoError(t, s.Ensure(t.Context(), "set", owner))
	assert.Equal(t, []string{"delete roles"}, s.requests())
	s.role(t, "label-only")
	s.role(t, "another-owner")
}

// barrier is a client whose deletions return when several are under way.
type barrier struct {
	typedClient[*corev1.ServiceAccount]
	underWay chan struct{}
}

func (b barrier) Delete(ctx context.Context, _ string, _ metav1.DeleteOptions) error {
	b.underWay <- struct{}{}
	for len(b.underWay) < cap(b.underWay) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		goruntime.Gosched()
	}
	return nil
}

// A user of any namespace can create objects with the marks of the set of somebody else.
func TestPrune_many(t *testing.T) {
	owner := someOwner("ns", "owner")
	set, err := marksOf("set", owner)
	require.NoError(t, err)
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byHash: func(object any) ([]string, error) {
		return []string{index.Bucket(object.(metav1.Object).GetLabels()[apply.LabelHash])}, nil
	}})
	for n := range parallelDeletes {
		forged := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: fmt.Sprint(n)}}
		set.mark(forged)
		require.NoError(t, indexer.Add(forged))
	}
	client := barrier{underWay: make(chan struct{}, parallelDeletes)}
	accounts := objects[*corev1.ServiceAccount]{cached: indexer, client: func(string) typedClient[*corev1.ServiceAccount] { return client }}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, accounts.prune(ctx, set, nil))
}

// What waits for a finalizer is not deleted again, but a Lease loses the finalizers that its agent has added.
func TestPrune_beingDeleted(t *testing.T) {
	s, owner := newScene(t), someOwner("ns", "owner")
	set, err := marksOf("set", owner)
	require.NoError(t, err)
	now := metav1.Now()
	metadata := func() metav1.ObjectMeta {
		m := metav1.ObjectMeta{
			Namespace: "other", Name: "waits", DeletionTimestamp: &now, Finalizers: []string{"example.com/x"}, Labels: map[string]string{managed: "true"},
		}
		set.mark(&m)
		return m
	}
	_, err = s.server.CoreV1().ServiceAccounts("other").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metadata()}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.server.CoordinationV1().Leases("other").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metadata()}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.sync(t)
	require.NoError(t, s.Ensure(t.Context(), "set", owner))
	assert.Equal(t, []string{"patch leases"}, s.requests())
}

func TestAdd(t *testing.T) {
	s, owner := newScene(t), someOwner("ns", "owner")
	require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("a", "get"), someRole("b", "get")))
	s.sync(t)
	require.NoError(t, s.Ensure(t.Context(), "set", owner, someRole("b", "get")))
	s.server.ClearActions()
	require.NoError(t, s.Add(t.Context(), "set", owner, someRole("a", "get")))
	assert.Equal(t, []string{"create roles"}, s.requests(), "the cache still shows it, and b stays")
	require.NoError(t, s.Add(t.Context(), "set", owner, someRole("a", "list")))
	assert.Equal(t, []string{"list"}, s.role(t, "a").Rules[0].Verbs, "it is corrected")
	require.NoError(t, s.Add(t.Context(), "set", owner))
}
