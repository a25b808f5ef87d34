package clusterregistration

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv/golden"
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
