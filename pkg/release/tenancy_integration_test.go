package release

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// tenant creates a ServiceAccount that may do everything in the namespace of the test and nothing elsewhere.
func (m *member) tenant(name string) {
	m.t.Helper()
	ctx := m.t.Context()
	_, err := m.core.CoreV1().ServiceAccounts(m.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(m.t, err)
	_, err = m.core.RbacV1().RoleBindings(m.namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: m.namespace, Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(m.t, err)
}

// mayCreate lets a ServiceAccount in the namespace of the test create and read ConfigMaps in another namespace, and nothing else.
func (m *member) mayCreate(name, namespace string) {
	m.t.Helper()
	_, err := m.core.RbacV1().Roles(namespace).Create(m.t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "create", "patch"}}},
	}, metav1.CreateOptions{})
	require.NoError(m.t, err)
	_, err = m.core.RbacV1().RoleBindings(namespace).Create(m.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: m.namespace, Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(m.t, err)
}

// A label has at most 63 characters, and the name of a ServiceAccount 253.
func TestDeploy_longServiceAccount(t *testing.T) {
	m := onMember(t)
	account := strings.Repeat("long-", 20) + "name"
	m.tenant(account)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	r.Options.ServiceAccount = account
	m.deploy(r)
	r.Resources[0].Content = configMap("b", "k", "one")
	m.deploy(r)
	assert.Equal(t, []string{"b"}, m.configMaps())
	require.NoError(t, m.Uninstall(t.Context(), m.namespace, "app", m.removal(m.namespace)))
	assert.Empty(t, m.configMaps())
	assert.Empty(t, m.mine())
}

// The agent stores the history. Without any right in a namespace, a tenant must not take the names of releases there.
func TestDeploy_releaseNamespaceOfOthers(t *testing.T) {
	for _, account := range []string{"named", "fleet-default"} {
		t.Run(account, func(t *testing.T) {
			m, others := onMember(t), onMember(t)
			m.tenant(account)
			r := m.request("a.yaml", strings.Replace(configMap("a", "k", "one"), "name: a", "name: a\n  namespace: "+m.namespace, 1))
			r.Namespace = others.namespace
			if account == "named" {
				r.Options.ServiceAccount = account
			}
			_, err := m.Deploy(t.Context(), r)
			require.ErrorContains(t, err, "ServiceAccount "+m.namespace+"/"+account+" may neither create, update nor patch anything in namespace "+others.namespace)
			assert.Empty(t, others.mine())
			elsewhere := r
			elsewhere.Namespace, elsewhere.Name = metav1.NamespaceDefault, m.namespace
			elsewhere.Resources = []fleet.BundleResource{{Name: "b.yaml", Content: strings.Replace(r.Resources[0].Content, "name: a", "name: b", 1)}}
			m.deploy(elsewhere)
			require.NoError(t, m.Uninstall(t.Context(), elsewhere.Namespace, elsewhere.Name, UninstallOptions{}))
			m.mayCreate(account, others.namespace)
			m.deploy(r)
			assert.Len(t, others.mine(), 1, "it needs no rights to Secrets")
			assert.Equal(t, []string{"a"}, m.configMaps())
		})
	}
}

func TestDeploy_serviceAccount(t *testing.T) {
	elsewhere := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n"
	t.Run("named, and missing", func(t *testing.T) {
		m := onMember(t)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Options.ServiceAccount = "gone"
		_, err := m.Deploy(t.Context(), r)
		require.ErrorContains(t, err, "serviceAccount names gone, which does not exist in the agent's namespace "+m.namespace)
	})
	for _, account := range []string{"named", "fleet-default"} {
		t.Run(account+" deploys, and removes", func(t *testing.T) {
			m := onMember(t)
			m.tenant(account)
			r := m.request("a.yaml", configMap("a", "k", "one"))
			if account == "named" {
				r.Options.ServiceAccount = account
			}
			m.deploy(r)
			assert.Equal(t, account, m.mine()[0].Options().ServiceAccount)
			_, err := m.Correct(t.Context(), r)
			require.NoError(t, err)
			r.Resources = []fleet.BundleResource{{Name: "b.yaml", Content: elsewhere}}
			_, err = m.Deploy(t.Context(), r)
			require.ErrorContains(t, err, "system:serviceaccount:"+m.namespace+":"+account)
		})
	}
}

// A tenant has adopted a release. Their revision has rollback hooks, which Helm would run with the identity of the former owner if a correction or
// a failed deployment of the former owner rolled the release back to that revision.
func TestCorrect_releaseOfAnotherOwner(t *testing.T) {
	m, f := signing(t), foreign(t)
	r := m.request("a.yaml", configMap("a", "k", "one"))
	m.deploy(r)
	m.tenant("tenant")
	theirs := m.request("Chart.yaml", chartYAML, "templates/a.yaml", configMap("a", "k", "theirs"),
		"templates/hook.yaml", hookIn(f.namespace, "pre-rollback,post-rollback"))
	theirs.BundleDeployment, theirs.Labels = "other", owner.LabelsFor("other", "one")
	theirs.Options.ServiceAccount, theirs.Options.Helm = "tenant", &fleet.HelmOptions{TakeOwnership: true}
	require.Equal(t, 2, m.deploy(theirs).Version)

	for _, takesOwnership := range []bool{false, true} {
		r.Options.Helm = &fleet.HelmOptions{TakeOwnership: takesOwnership, Atomic: takesOwnership}
		var conflict *ConflictError
		_, err := m.Correct(t.Context(), r)
		require.ErrorAs(t, err, &conflict)
		_, err = m.Sweep(t.Context(), r)
		require.ErrorAs(t, err, &conflict)
	}
	r.Resources = append(r.Resources, fleet.BundleResource{Name: "z.yaml", Content: invalidService})
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "spec.ports[0].port")
	assert.Equal(t, []string{"theirs"}, f.configMaps(), "none of their hooks ran")
	r.Resources = r.Resources[:1]
	assert.Equal(t, 4, m.deploy(r).Version, "the failed revision was not rolled back")
	assert.Equal(t, "one", m.configMap("a").Data["k"])
}

// A tenant who may read the objects of other tenants stores a revision with such an object. The deployment fails, because the tenant has no right
// to change the object.
func TestDeploy_upgradeFromRevisionOfTenant(t *testing.T) {
	for name, deployment := range map[string]string{"of another BundleDeployment": "other", "with another identity": "app"} {
		t.Run(name, func(t *testing.T) {
			m, f := signing(t), foreign(t)
			m.tenant("tenant")
			_, err := m.core.RbacV1().RoleBindings(f.namespace).Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
				Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: m.namespace, Name: "tenant"}},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			object := strings.Replace(configMap("theirs", "k", "v"), "name: theirs", "name: theirs\n  namespace: "+f.namespace, 1)
			r := m.request("theirs.yaml", object)
			r.BundleDeployment, r.Labels = deployment, owner.LabelsFor(deployment, "one")
			r.Options.ServiceAccount, r.Options.Helm = "tenant", &fleet.HelmOptions{TakeOwnership: true}
			_, err = m.Deploy(t.Context(), r)
			require.ErrorContains(t, err, "forbidden")
			require.Len(t, m.mine(), 1, "the failed revision is stored")

			r = m.request("a.yaml", configMap("a", "k", "one"))
			r.Options.Helm = &fleet.HelmOptions{TakeOwnership: true}
			m.deploy(r)
			assert.Equal(t, []string{"theirs"}, f.configMaps())
			assert.Equal(t, []string{"a"}, m.configMaps())
		})
	}
}

func TestDeploy_valuesFromAsTenant(t *testing.T) {
	m := onMember(t)
	m.tenant("fleet-default")
	other := onMember(t)
	for _, namespace := range []string{m.namespace, other.namespace} {
		_, err := m.core.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "more"}, Data: map[string][]byte{"values.yaml": []byte("text: s")},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	r := m.request("Chart.yaml", "apiVersion: v2\nname: app\nversion: 1.2.3\n",
		"templates/cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: {k: '{{ .Values.text }}'}\n")
	r.Options.Helm = &fleet.HelmOptions{ValuesFrom: []fleet.ValuesFrom{{SecretKeyRef: &fleet.KeySelector{Name: "more"}}}}
	m.deploy(r)
	assert.Equal(t, "s", m.configMap("app").Data["k"])
	r.Options.Helm.ValuesFrom[0].SecretKeyRef.Namespace = other.namespace
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "system:serviceaccount:"+m.namespace+":fleet-default", "a tenant reads only what is theirs")
}

func TestDeploy_copiesAsTenant(t *testing.T) {
	m, other := onMember(t), onMember(t)
	m.tenant("fleet-default")
	r := m.request("a.yaml", configMap("a", "k", "one"))
	r.Copies = []runtime.Object{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cred"}, Type: corev1.SecretTypeOpaque}}
	for range 2 { // the second one updates it
		m.deploy(r)
		copied, err := m.core.CoreV1().Secrets(m.namespace).Get(t.Context(), "cred", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, "app", copied.Labels[CopyLabel])
		r.Copies = []runtime.Object{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cred"}, Data: map[string][]byte{"k": []byte("two")}}}
	}

	r.Namespace = other.namespace
	m.mayCreate("fleet-default", other.namespace)
	_, err := m.Deploy(t.Context(), r)
	require.ErrorContains(t, err, "copying Secret cred from the hub")
	require.ErrorContains(t, err, "system:serviceaccount:"+m.namespace+":fleet-default")
	_, err = m.core.CoreV1().Secrets(other.namespace).Get(t.Context(), "cred", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "a tenant writes no copy where they may not create Secrets")
}

func TestDeploy_copiedSecretTypes(t *testing.T) {
	m := onMember(t)
	for _, secretType := range []corev1.SecretType{corev1.SecretTypeBootstrapToken, corev1.SecretTypeServiceAccountToken, "helm.sh/release.v1"} {
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Copies = []runtime.Object{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cred"}, Type: secretType}}
		_, err := m.Deploy(t.Context(), r)
		var refused *InvalidError
		require.ErrorAs(t, err, &refused)
		_, err = m.core.CoreV1().Secrets(m.namespace).Get(t.Context(), "cred", metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err), secretType)
	}
}

func TestDeploy_namespace(t *testing.T) {
	read := func(m *member, name string) *corev1.Namespace {
		t.Helper()
		found, err := m.core.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return found
	}
	t.Run("is created, labelled and deleted", func(t *testing.T) {
		m := onMember(t)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Namespace = m.namespace + "-new"
		r.Options.NamespaceLabels = map[string]string{"a": "b", "pod-security.kubernetes.io/enforce": "privileged", "kubernetes.io/metadata.name": "x"}
		m.deploy(r)
		assert.Equal(t, map[string]string{"a": "b", "kubernetes.io/metadata.name": r.Namespace}, read(m, r.Namespace).Labels)
		_, err := m.core.CoreV1().Namespaces().Patch(t.Context(), r.Namespace, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"theirs":"l","pod-security.kubernetes.io/enforce":"restricted"},"annotations":{"theirs":"a"}}}`), metav1.PatchOptions{FieldManager: "person"})
		require.NoError(t, err)
		r.Options.NamespaceLabels = map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}
		r.Options.NamespaceAnnotations = map[string]string{"c": "d"}
		m.deploy(r)
		found := read(m, r.Namespace)
		assert.Equal(t, map[string]string{"theirs": "l", "pod-security.kubernetes.io/enforce": "restricted", "kubernetes.io/metadata.name": r.Namespace}, found.Labels)
		assert.Equal(t, map[string]string{"theirs": "a", "c": "d"}, found.Annotations)
		require.NoError(t, m.Uninstall(t.Context(), r.Namespace, "app", UninstallOptions{DeleteNamespace: true}))
		found, err = m.core.CoreV1().Namespaces().Get(t.Context(), r.Namespace, metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err) || found.DeletionTimestamp != nil)
	})
	for title, earlier := range map[string]func(*testing.T, *member){
		"Fleet's own agent": func(t *testing.T, m *member) {
			_, err := m.core.CoreV1().Namespaces().Patch(t.Context(), m.namespace, types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"a":"b"},"annotations":{"c":"d"}}}`), metav1.PatchOptions{FieldManager: objectManager})
			require.NoError(t, err)
		},
		"an agent with one field manager for all BundleDeployments": func(t *testing.T, m *member) {
			labelled := applycorev1.Namespace(m.namespace).WithLabels(map[string]string{"a": "b"}).WithAnnotations(map[string]string{"c": "d"})
			_, err := m.core.CoreV1().Namespaces().Apply(t.Context(), labelled, metav1.ApplyOptions{FieldManager: registration.FieldManager})
			require.NoError(t, err)
		},
	} {
		t.Run("labels of "+title+" are removed when the options no longer have them", func(t *testing.T) {
			m := onMember(t)
			earlier(t, m)
			before := read(m, m.namespace)
			r := m.request("a.yaml", configMap("a", "k", "one"))
			r.Options.NamespaceLabels, r.Options.NamespaceAnnotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
			m.deploy(r)
			assert.Equal(t, before.Labels, read(m, m.namespace).Labels)
			r.Options.NamespaceLabels, r.Options.NamespaceAnnotations = nil, nil
			require.NoError(t, m.LabelNamespace(t.Context(), r))
			found := read(m, m.namespace)
			assert.NotContains(t, found.Labels, "a")
			assert.NotContains(t, found.Annotations, "c")
			assert.Len(t, found.Labels, len(before.Labels)-1, "the others stay")
		})
	}
	t.Run("labels stay that a release sets which deploys the Namespace itself", func(t *testing.T) {
		m := onMember(t)
		applied := applycorev1.Namespace(m.namespace).WithLabels(map[string]string{"a": "b"})
		_, err := m.core.CoreV1().Namespaces().Apply(t.Context(), applied, metav1.ApplyOptions{FieldManager: objectManager})
		require.NoError(t, err)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Options.NamespaceLabels = map[string]string{"a": "b"}
		m.deploy(r)
		r.Options.NamespaceLabels = nil
		require.NoError(t, m.LabelNamespace(t.Context(), r))
		assert.Equal(t, "b", read(m, m.namespace).Labels["a"])
	})
	t.Run("without labels it is as Helm creates it", func(t *testing.T) {
		m := onMember(t)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Namespace = m.namespace + "-new"
		m.deploy(r)
		assert.Equal(t, map[string]string{"name": r.Namespace, "kubernetes.io/metadata.name": r.Namespace}, read(m, r.Namespace).Labels)
	})
	t.Run("a tenant who may not label it deploys", func(t *testing.T) {
		m := onMember(t)
		_, err := m.core.CoreV1().ServiceAccounts(m.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "fleet-default"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		m.mayCreate("fleet-default", m.namespace)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Options.NamespaceLabels = map[string]string{"a": "b"}
		d, err := m.Deploy(t.Context(), r)
		require.NoError(t, err)
		require.NotNil(t, d.NamespaceErr)
		refused := d.NamespaceErr
		assert.Equal(t, m.namespace+"/app:1", d.String())
		assert.Equal(t, "one", m.configMap("a").Data["k"])
		require.ErrorAs(t, m.LabelNamespace(t.Context(), r), &refused)
		assert.NotContains(t, read(m, m.namespace).Labels, "a")
	})
	t.Run("a tenant may not create or label one", func(t *testing.T) {
		m := onMember(t)
		_, err := m.core.CoreV1().ServiceAccounts(m.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "fleet-default"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		r := m.request("a.yaml", configMap("a", "k", "one"))
		r.Options.NamespaceLabels = map[string]string{"a": "b"}
		_, err = m.Deploy(t.Context(), r)
		require.ErrorContains(t, err, "fleet-default")
		r.Namespace = m.namespace + "-new"
		_, err = m.Deploy(t.Context(), r)
		require.ErrorContains(t, err, "fleet-default")
		_, err = m.core.CoreV1().Namespaces().Get(t.Context(), r.Namespace, metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err))
	})
}

func TestCheckNamespace(t *testing.T) {
	team := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	for name, row := range map[string]struct {
		labels  map[string]string
		missing bool
		options fleet.BundleDeploymentOptions
		says    string
	}{
		"no limits, missing":          {nil, true, fleet.BundleDeploymentOptions{}, ""},
		"may be created":              {nil, true, fleet.BundleDeploymentOptions{CreateNamespace: ptr.To(true)}, ""},
		"may not be created":          {nil, true, fleet.BundleDeploymentOptions{CreateNamespace: ptr.To(false)}, "does not exist"},
		"need not be created":         {nil, false, fleet.BundleDeploymentOptions{CreateNamespace: ptr.To(false)}, ""},
		"selected":                    {map[string]string{"team": "a"}, false, fleet.BundleDeploymentOptions{AllowedTargetNamespaceSelector: team}, ""},
		"not selected":                {map[string]string{"team": "b"}, false, fleet.BundleDeploymentOptions{AllowedTargetNamespaceSelector: team}, "does not match allowedTargetNamespaceSelector (team=a)"},
		"cannot be selected: missing": {nil, true, fleet.BundleDeploymentOptions{AllowedTargetNamespaceSelector: team, CreateNamespace: ptr.To(true)}, "does not exist"},
		"an invalid selector": {nil, false, fleet.BundleDeploymentOptions{AllowedTargetNamespaceSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}},
		}}, "allowedTargetNamespaceSelector: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkNamespace("apps", row.labels, row.missing, row.options)
			if row.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, row.says)
			}
		})
	}
}
