package clusterregistration

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func somePass() *pass {
	clock := clocktesting.NewFakeClock(noon)
	h := &handler{Context: &app.Context{SystemNamespace: "cattle-fleet-system", Clock: clock}, made: expectations.New(clock)}
	return &pass{
		handler: h,
		request: &fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "request-abc", UID: "0c5bbf4e", CreationTimestamp: metav1.NewTime(noon)},
			Spec:       fleet.ClusterRegistrationSpec{ClientID: "client", ClientRandom: "random"},
		},
		after:   &fleet.ClusterRegistrationStatus{},
		cluster: &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-default", Name: "member", UID: "c"}},
		reader:  &registration.Token{Name: "token", ServiceAccount: "token-uid"},
	}
}

func TestRightsOfAnAgentAreJustThese(t *testing.T) {
	for golden, change := range map[string]func(*pass){
		"rights": func(*pass) {},
		"rights-of-one-that-renews": func(p *pass) {
			p.request.Annotations = map[string]string{"muster.fleet.cattle.io/credential-renewal": "true"}
		},
		"rights-beside-fleet": func(p *pass) { p.DisableBundles = true },
	} {
		t.Run(golden, func(t *testing.T) {
			p := somePass()
			change(p)
			requireGolden(t, "testdata/"+golden+".golden.yaml", p.rights())
		})
	}
}

func requireGolden(t *testing.T, file string, objects []runtime.Object) {
	t.Helper()
	var all strings.Builder
	for _, object := range objects {
		data, err := yaml.Marshal(object)
		require.NoError(t, err)
		all.WriteString("---\n# " + typeName(object) + "\n" + string(data))
	}
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(file, []byte(all.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the test with -update")
	assert.Equal(t, string(want), all.String())
}

func TestAClusterInQuarantineLeavesItsAgentTheBareIdentity(t *testing.T) {
	p := somePass()
	p.cluster.Spec.Quarantined = true
	assert.Equal(t, []runtime.Object{p.account()}, p.rights())
}

func TestOnlyBindingsThatWereMadeForTheRequestAreWide(t *testing.T) {
	p := somePass()
	for _, row := range []struct {
		name   string
		change func(*rbacv1.RoleBinding)
		wide   bool
	}{
		{"as Fleet made it", func(*rbacv1.RoleBinding) {}, true},
		{"to all Contents", func(b *rbacv1.RoleBinding) { b.RoleRef.Name = "fleet-content" }, true},
		{"to a Role", func(b *rbacv1.RoleBinding) { b.RoleRef.Kind = "Role" }, false},
		{"to something else", func(b *rbacv1.RoleBinding) { b.RoleRef.Name = "view" }, false},
		{"of another request", func(b *rbacv1.RoleBinding) { b.Annotations[apply.LabelName] = "request-x" }, false},
		{"of another namespace", func(b *rbacv1.RoleBinding) { b.Annotations[apply.LabelNamespace] = "x" }, false},
		{"of another kind", func(b *rbacv1.RoleBinding) { b.Annotations[apply.LabelGVK] = "v1, Kind=Pod" }, false},
		{"a person's", func(b *rbacv1.RoleBinding) { b.Annotations = nil }, false},
	} {
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				apply.LabelGVK: "fleet.cattle.io/v1alpha1, Kind=ClusterRegistration", apply.LabelNamespace: "fleet-default", apply.LabelName: "request-abc",
			}},
			RoleRef: role("ClusterRole", "fleet-bundle-deployment"),
		}
		row.change(binding)
		assert.Equal(t, row.wide, p.isWide(binding, binding.RoleRef), row.name)
	}
}

func typeName(object any) string {
	switch object.(type) {
	case *corev1.ServiceAccount:
		return "ServiceAccount"
	case *rbacv1.Role:
		return "Role"
	case *rbacv1.RoleBinding:
		return "RoleBinding"
	case *rbacv1.ClusterRoleBinding:
		return "ClusterRoleBinding"
	}
	return "something else"
}

func TestNobodyReadsTheCredentialWithoutAToken(t *testing.T) {
	p := somePass()
	with := len(p.rights())
	p.reader = nil
	assert.Len(t, p.rights(), with-2)
	for _, object := range p.rights() {
		accessor := object.(metav1.Object)
		assert.NotEqual(t, p.RegistrationNamespace(), accessor.GetNamespace())
	}
}

func TestRequestsOfTwoNamespacesShareNoName(t *testing.T) {
	one, two := somePass(), somePass()
	two.request.Namespace, two.request.UID = "fleet-other", "another"
	two.cluster.Namespace = "fleet-other"
	names := map[string]bool{}
	for _, p := range []*pass{one, two} {
		for _, object := range p.rights() {
			accessor := object.(metav1.Object)
			key := typeName(object) + "/" + accessor.GetNamespace() + "/" + accessor.GetName()
			assert.False(t, names[key], key)
			names[key] = true
		}
	}
}

func TestCredentialSecretHasFiveKeysAndTwoLabels(t *testing.T) {
	assert.Equal(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "cattle-fleet-clusters-system", Name: "c-8150d44f100d34d77e6d8589694d05645ec40ee2f47982eda19053e416662",
			Labels: map[string]string{"fleet.cattle.io/managed": "true", "fleet.cattle.io/cluster": "member"},
			Annotations: map[string]string{
				"fleet.cattle.io/cluster-registration": "request-abc", "fleet.cattle.io/cluster-registration-namespace": "fleet-default",
			},
		},
		Type: "fleet.cattle.io/agent-credential",
		Data: map[string][]byte{
			"token": []byte("bearer"), "deploymentNamespace": []byte(registration.ClusterNamespace("fleet-default", "member")),
			"clusterNamespace": []byte("fleet-default"), "clusterName": []byte("member"), "systemNamespace": []byte("cattle-fleet-system"),
		},
	}, somePass().credentialSecret(credential.Token("bearer")))
}

func TestCredentialIsOfTheRequestItNames(t *testing.T) {
	p := somePass()
	for _, row := range []struct {
		name   string
		change func(*corev1.Secret)
		is     bool
	}{
		{"as it was made", func(*corev1.Secret) {}, true},
		{"as another release made it", func(s *corev1.Secret) {
			s.Annotations = map[string]string{ownerAnnotations[0]: "fleet-default", ownerAnnotations[1]: "request-abc"}
		}, true},
		{"of a request elsewhere", func(s *corev1.Secret) { s.Annotations[fleet.ClusterRegistrationNamespaceAnnotation] = "x" }, false},
		{"of another request", func(s *corev1.Secret) { s.Annotations[fleet.ClusterRegistrationAnnotation] = "x" }, false},
		{"of another type", func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, false},
		{"of nobody", func(s *corev1.Secret) { s.Annotations = nil }, false},
	} {
		s := p.credentialSecret("bearer")
		row.change(s)
		assert.Equal(t, row.is, isFor(s, p.request), row.name)
	}
}

func TestSecretsAreFoundByTheirRequest(t *testing.T) {
	s := somePass().credentialSecret("bearer")
	keys, err := requestOfSecret(s)
	require.NoError(t, err)
	assert.Equal(t, []string{"fleet-default/request-abc"}, keys)
	for _, change := range []func(*corev1.Secret){
		func(s *corev1.Secret) { s.Type = "Opaque" }, func(s *corev1.Secret) { s.Annotations = nil },
	} {
		other := s.DeepCopy()
		change(other)
		keys, err = requestOfSecret(other)
		require.NoError(t, err)
		assert.Empty(t, keys)
	}
}

func TestOnlyCredentialsOfTheHubExpire(t *testing.T) {
	p := somePass()
	for _, row := range []struct {
		name   string
		change func(*corev1.Secret)
		is     bool
	}{
		{"a credential", func(*corev1.Secret) {}, true},
		{"one elsewhere", func(s *corev1.Secret) { s.Namespace = "elsewhere" }, false},
		{"a Secret of another type", func(s *corev1.Secret) { s.Type = "Opaque" }, false},
		{"one of no Cluster", func(s *corev1.Secret) { delete(s.Labels, fleet.ClusterLabel) }, false},
	} {
		s := p.credentialSecret("bearer")
		row.change(s)
		assert.Equal(t, row.is, p.isCredential(s), row.name)
	}
}

func TestShortWaitIsNotWorthAWrite(t *testing.T) {
	for _, row := range []struct {
		name  string
		out   result.Result
		age   time.Duration
		early bool
	}{
		{"a wait of a moment", result.Wait("W", ""), time.Second, true},
		{"a wait that lasts", result.Wait("W", ""), patience, false},
		{"a refusal", result.Stalled("S", ""), 0, false},
		{"a grant", result.Done("G", ""), 0, false},
	} {
		p := somePass()
		p.request.CreationTimestamp = metav1.NewTime(noon.Add(-row.age))
		assert.Equal(t, row.early, p.tooEarlyToTell(p.request, row.out), row.name)
	}
}

func TestGrantedRequestsAreNotBroughtBack(t *testing.T) {
	waits, granted := somePass().request, somePass().request
	granted.Name, granted.Status.Granted = "granted", true
	assert.Equal(t, []types.NamespacedName{{Namespace: "fleet-default", Name: "request-abc"}}, ungranted([]*fleet.ClusterRegistration{granted, waits}))
}

func TestClustersAreFoundByName(t *testing.T) {
	a, b := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	assert.Same(t, b, named("b", a, nil, b))
	assert.Nil(t, named("c", a, nil, b))
	assert.Nil(t, known(nil))
}
