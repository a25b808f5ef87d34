package release

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// reads gives a tenant the right to read all objects of the cluster.
func (m *member) reads(account string) {
	m.t.Helper()
	name := m.namespace + "-" + account
	_, err := m.core.RbacV1().ClusterRoles().Create(m.t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	require.NoError(m.t, err)
	_, err = m.core.RbacV1().ClusterRoleBindings().Create(m.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: m.namespace, Name: account}},
	}, metav1.CreateOptions{})
	require.NoError(m.t, err)
}

// foreign returns a namespace in which a tenant has no rights, with a ConfigMap.
func foreign(t *testing.T) *member {
	t.Helper()
	f := onMember(t)
	_, err := f.core.CoreV1().ConfigMaps(f.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return f
}

// hookIn returns a manifest of a hook in another namespace.
func hookIn(namespace, event string) string {
	return strings.Replace(configMap("hook", "k", "v"), "name: hook",
		"name: hook\n  namespace: "+namespace+"\n  annotations: {helm.sh/hook: \""+event+"\"}", 1)
}

const chartYAML = "apiVersion: v2\nname: app\nversion: 1.2.3\n"

// removal returns the options with which an agent removes its only release.
func (m *member) removal(agentNamespace string) UninstallOptions {
	m.t.Helper()
	found := m.mine()
	require.Len(m.t, found, 1)
	options := found[0].Options()
	options.ServiceAccountNamespace = agentNamespace
	return options
}

func TestUninstall_tenant(t *testing.T) {
	for _, event := range []string{"pre-delete", "post-delete", "pre-delete,post-delete"} {
		t.Run(event+" hooks have the rights of the tenant", func(t *testing.T) {
			m, f := onMember(t), foreign(t)
			m.tenant("fleet-default")
			m.deploy(m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"), "templates/hook.yaml", hookIn(f.namespace, event)))
			err := m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace))
			assert.Equal(t, []string{"theirs"}, f.configMaps())
			require.NoError(t, err)
			assert.Empty(t, m.configMaps(), "what they deployed is removed")
			assert.Empty(t, m.mine())
		})
	}
	t.Run("objects of others stay", func(t *testing.T) {
		m, f := onMember(t), foreign(t)
		m.tenant("fleet-default")
		m.reads("fleet-default")
		r := m.request("a.yaml", configMap("a", "k", "one"))
		m.deploy(r)
		r.Resources = append(r.Resources, fleet.BundleResource{Name: "b.yaml", Content: strings.Replace(configMap("theirs", "k", "v"), "name: theirs", "name: theirs\n  namespace: "+f.namespace, 1)})
		_, err := m.Deploy(t.Context(), r)
		require.ErrorContains(t, err, "forbidden")
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)))
		assert.Equal(t, []string{"theirs"}, f.configMaps())
		assert.Empty(t, m.configMaps())
		assert.Empty(t, m.mine())
	})
	t.Run("CustomResourceDefinitions of others stay", func(t *testing.T) {
		m := onMember(t)
		m.tenant("fleet-default")
		kind := strings.NewReplacer("things", "theirs", "thing", "their", "Thing", "Their").Replace(thingKind)
		definition := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(kind), &definition.Object))
		definitions := m.dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
		_, err := definitions.Create(t.Context(), definition, metav1.CreateOptions{})
		require.NoError(t, err)
		r := m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "one"))
		r.Options.DeleteCRDResources = true
		m.deploy(r)
		r.Resources = append(r.Resources, fleet.BundleResource{Name: "crds/crd.yaml", Content: kind},
			fleet.BundleResource{Name: "templates/hook.yaml", Content: hookIn("default", "pre-delete")})
		m.deploy(r)
		require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)))
		found, err := definitions.Get(t.Context(), definition.GetName(), metav1.GetOptions{})
		require.NoError(t, err)
		assert.Nil(t, found.GetDeletionTimestamp())
		assert.Empty(t, m.mine())
	})
	t.Run("namespaces that the tenant may not delete stay", func(t *testing.T) {
		m, f := onMember(t), foreign(t)
		m.tenant("fleet-default")
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Resources[0].Content = strings.Replace(r.Resources[0].Content, "name: a", "name: a\n  namespace: "+m.namespace, 1)
		r.Namespace, r.Options.DeleteNamespace = f.namespace, true
		m.mayCreate("fleet-default", f.namespace)
		m.deploy(r)
		require.NoError(t, m.Uninstall(t.Context(), f.namespace, "app", f.removal(m.namespace)))
		found, err := f.core.CoreV1().Namespaces().Get(t.Context(), f.namespace, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Nil(t, found.DeletionTimestamp)
		assert.Empty(t, f.mine())
	})
}

func TestDeploy_takeOwnershipAsTenant(t *testing.T) {
	m, f := onMember(t), foreign(t)
	m.tenant("fleet-default")
	for name, row := range map[string]struct {
		in      *member
		allowed bool
	}{"a release in a namespace where the tenant may not change Secrets": {f, false}, "a release in the namespace of the tenant": {m, true}} {
		t.Run(name, func(t *testing.T) {
			person := row.in.request("b.yaml", configMap("b", "k", "one"))
			person.Labels, person.ServiceAccountNamespace = map[string]string{"made": "by-a-person"}, "default"
			row.in.deploy(person)
			r := m.request("a.yaml", strings.Replace(configMap("a", "k", "one"), "name: a", "name: a\n  namespace: "+m.namespace, 1))
			r.Namespace, r.Options.Helm = row.in.namespace, &fleet.HelmOptions{TakeOwnership: true}
			_, err := m.Deploy(t.Context(), r)
			if row.allowed {
				require.NoError(t, err)
				return
			}
			var refused *ConflictError
			require.ErrorAs(t, err, &refused)
			secrets, err := m.core.CoreV1().Secrets(row.in.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
			require.NoError(t, err)
			assert.Len(t, secrets.Items, 1, "no revision is added")
		})
	}
}
