package clusterregistration

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv/golden"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	fakefleet "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
)

func TestRights(t *testing.T) {
	for golden, change := range map[string]func(*scene){
		"rights":                    func(s *scene) { s.cannotRenew() },
		"rights-of-one-that-renews": func(*scene) {},
		"rights-beside-fleet":       func(s *scene) { s.cannotRenew(); s.DisableBundles = true },
	} {
		t.Run(golden, func(t *testing.T) {
			s := newScene(t)
			change(s)
			requireGolden(t, "testdata/"+golden+".golden.yaml", s.rights(s.request, s.cluster, s.token))
		})
	}
	t.Run("in quarantine: the ServiceAccount", func(t *testing.T) {
		s := newScene(t)
		s.cluster.Spec.Quarantined = true
		rights := s.rights(s.request, s.cluster, s.token)
		require.Len(t, rights, 1)
		assert.IsType(t, &corev1.ServiceAccount{}, rights[0])
	})
	t.Run("without a token: nobody reads the credential", func(t *testing.T) {
		s := newScene(t)
		rights := s.rights(s.request, s.cluster, nil)
		assert.Len(t, rights, len(s.rights(s.request, s.cluster, s.token))-2)
		for _, object := range rights {
			assert.NotEqual(t, s.RegistrationNamespace(), object.(metav1.Object).GetNamespace())
		}
	})
	t.Run("granted: the token reads the credential as long as its Secret exists", func(t *testing.T) {
		s := newScene(t)
		all := len(s.rights(s.request, s.cluster, s.token))
		s.request.Status.Granted = true
		s.createdAnswers.Expect(string(s.request.UID))
		assert.Len(t, s.rights(s.request, s.cluster, s.token), all, "the cache may lack it")
		secret := s.credentialOf(s.request, "bearer")
		s.haveCached()
		s.observeAnswer(nil, secret)
		assert.Equal(t, []types.NamespacedName{{Namespace: "fleet-default", Name: "request-abc"}}, s.dependentsOfAnswer(secret))
		s.secrets = secretsOf(secret)
		assert.Len(t, s.rights(s.request, s.cluster, s.token), all)
		s.secrets = secretsOf()
		assert.Len(t, s.rights(s.request, s.cluster, s.token), all-2, "it was deleted")
		s.secrets = failing[*corev1.Secret](errors.New("no index"))
		assert.Len(t, s.rights(s.request, s.cluster, s.token), all)
	})
	t.Run("only the value true renews", func(t *testing.T) {
		s := newScene(t)
		s.request.Annotations["muster.fleet.cattle.io/credential-renewal"] = "yes"
		requireGolden(t, "testdata/rights.golden.yaml", s.rights(s.request, s.cluster, s.token))
	})
	t.Run("requests of two namespaces share no name", func(t *testing.T) {
		one, two := newScene(t), newScene(t)
		two.request.Namespace, two.request.UID, two.cluster.Namespace = "fleet-other", "another", "fleet-other"
		names := map[string]bool{}
		for _, s := range []*scene{one, two} {
			for _, object := range s.rights(s.request, s.cluster, s.token) {
				accessor := object.(metav1.Object)
				key := typeName(object) + "/" + accessor.GetNamespace() + "/" + accessor.GetName()
				assert.False(t, names[key], key)
				names[key] = true
			}
		}
	})
}

func TestKeepIdentity(t *testing.T) {
	all, account := []string{"rolebindings 3", "roles 3", "serviceaccounts 1"}, []string{"serviceaccounts 1"}
	for _, row := range []struct {
		name   string
		set    string
		change func(*scene)
		want   []string
	}{
		{"the agent keeps its rights", ownedSet(newScene(t).request), func(*scene) {}, all},
		{"in quarantine: the ServiceAccount", ownedSet(newScene(t).request), func(s *scene) { s.cluster.Spec.Quarantined = true }, account},
		{"in quarantine, created by Fleet's hub: the ServiceAccount", setID, func(s *scene) { s.cluster.Spec.Quarantined = true }, account},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			require.NoError(t, s.sets.Ensure(t.Context(), row.set, s.request, s.rights(s.request, s.cluster, s.token)...))
			account, err := s.kube.CoreV1().ServiceAccounts(clusterNamespace(s.cluster)).Get(t.Context(), accountName(s.request), metav1.GetOptions{})
			require.NoError(t, err)
			s.kindDeleted, s.identities.Accounts = true, fakecache.With(account)
			row.change(s)
			s.clusters = fakecache.With(s.cluster)
			s.identities.Clusters = fakefleet.NewSimpleClientset(s.cluster).FleetV1alpha1()
			caches := s.cacheSets()
			caches.Start(t.Context().Done())
			caches.WaitForCacheSync(t.Context().Done())
			for range 2 { // the deletions enqueue the request again
				_, err = s.onChange(requestKey.String(), nil)
				require.NoError(t, err)
			}
			assert.Equal(t, row.want, s.owned(t))
		})
	}
	t.Run("an error is retried", func(t *testing.T) {
		s := newScene(t)
		s.identities.Accounts = failing[*corev1.ServiceAccount](errTest)
		require.ErrorIs(t, s.keepIdentity(t.Context(), requestKey.Namespace, requestKey.Name), errTest)
		s.identities.Accounts, s.clusters = fakecache.With(s.account()), failing[*fleet.Cluster](errTest)
		require.ErrorIs(t, s.keepIdentity(t.Context(), requestKey.Namespace, requestKey.Name), errTest)
	})
}

// owned returns the number of objects on the API server of each kind that rights has.
func (s *scene) owned(t *testing.T) (kinds []string) {
	t.Helper()
	for resource, kind := range map[schema.GroupVersionResource]schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithResource("serviceaccounts"): corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
		coordinationv1.SchemeGroupVersion.WithResource("leases"):  coordinationv1.SchemeGroupVersion.WithKind("Lease"),
		rbacv1.SchemeGroupVersion.WithResource("roles"):           rbacv1.SchemeGroupVersion.WithKind("Role"),
		rbacv1.SchemeGroupVersion.WithResource("rolebindings"):    rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
	} {
		list, err := s.kube.Tracker().List(resource, kind, "")
		require.NoError(t, err)
		if count := meta.LenList(list); count > 0 {
			kinds = append(kinds, fmt.Sprint(resource.Resource, " ", count))
		}
	}
	slices.Sort(kinds)
	return kinds
}

func requireGolden(t *testing.T, file string, objects []runtime.Object) {
	t.Helper()
	var all strings.Builder
	for _, object := range objects {
		data, err := yaml.Marshal(object)
		require.NoError(t, err)
		all.WriteString("---\n# " + typeName(object) + "\n" + string(data))
	}
	golden.Equal(t, file, all.String())
}

func typeName(object any) string { return reflect.TypeOf(object).Elem().Name() }

func TestIsFleetBinding(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*rbacv1.RoleBinding)
		is     bool
	}{
		"as Fleet created it":  {func(*rbacv1.RoleBinding) {}, true},
		"to all Contents":      {func(b *rbacv1.RoleBinding) { b.RoleRef.Name = "fleet-content" }, true},
		"to a Role":            {func(b *rbacv1.RoleBinding) { b.RoleRef.Kind = "Role" }, false},
		"to another role":      {func(b *rbacv1.RoleBinding) { b.RoleRef.Name = "view" }, false},
		"of another request":   {func(b *rbacv1.RoleBinding) { b.Annotations[apply.LabelName] = "request-x" }, false},
		"of another namespace": {func(b *rbacv1.RoleBinding) { b.Annotations[apply.LabelNamespace] = "x" }, false},
		"of another kind":      {func(b *rbacv1.RoleBinding) { b.Annotations[apply.LabelGVK] = "v1, Kind=Pod" }, false},
		"of a person":          {func(b *rbacv1.RoleBinding) { b.Annotations = nil }, false},
	} {
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				apply.LabelGVK: "fleet.cattle.io/v1alpha1, Kind=ClusterRegistration", apply.LabelNamespace: "fleet-default", apply.LabelName: "request-abc",
			}},
			RoleRef: role("ClusterRole", "fleet-bundle-deployment"),
		}
		row.change(binding)
		assert.Equal(t, row.is, isFleetBinding(newScene(t).request, binding, binding.RoleRef), name)
	}
}
