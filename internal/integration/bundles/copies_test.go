package bundles

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestDownstreamResources(t *testing.T) {
	sample.Long(t)
	s := parallelShop(t)
	secrets, configMaps := s.hub.Kubernetes.CoreV1().Secrets, s.hub.Kubernetes.CoreV1().ConfigMaps
	testenv.Create(t, configMaps(s.ns).Create, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "conf"}, Data: map[string]string{"values.yaml": "b: 2"}, BinaryData: map[string][]byte{"x": {1}},
	})
	s.cluster(t, "a", nil)
	s.bundle(t, "app", "copied", func(b *fleet.Bundle) {
		everywhere(b)
		b.Spec.DownstreamResources = []fleet.DownstreamResource{{Kind: "Secret", Name: "cred"}, {Kind: "configmap", Name: "conf"}}
	})
	home := s.namespaceOf("a")
	s.requireCluster(t, "a", "0/1", "False DownstreamResourceMissing: Secret "+s.ns+"/cred, which downstreamResources names, does not exist, or is a ServiceAccount token or a Helm release, which are not copied; create one of another type")

	cred := testenv.Create(t, secrets(s.ns).Create, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "cred"}, Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{"username": []byte("joe"), "password": []byte("first")},
	})
	copied := testenv.EventuallyThere(t, secrets(home).Get, "cred")
	assert.Equal(t, []any{cred.Type, cred.Data}, []any{copied.Type, copied.Data})
	assert.Empty(t, copied.Labels)
	d := s.eventuallyDeployment(t, "a", "app", func(d *fleet.BundleDeployment) bool { return d.Spec.DownstreamResourcesGeneration > 0 })
	assert.True(t, metav1.IsControlledBy(copied, d))
	conf := testenv.EventuallyThere(t, configMaps(home).Get, "conf")
	assert.Equal(t, map[string]string{"values.yaml": "b: 2"}, conf.Data)
	assert.Equal(t, map[string][]byte{"x": {1}}, conf.BinaryData)

	role := testenv.EventuallyThere(t, s.hub.Kubernetes.RbacV1().Roles(home).Get, registration.RoleDeploymentSecrets)
	testenv.Eventually(t, func() (bool, string) {
		role, err := s.hub.Kubernetes.RbacV1().Roles(home).Get(t.Context(), registration.RoleDeploymentSecrets, metav1.GetOptions{})
		return err == nil && len(role.Rules) == 2, "the Role lacks a rule"
	})
	assert.Equal(t, []string{"cred"}, role.Rules[0].ResourceNames)
	assert.Equal(t, []string{"conf"}, role.Rules[1].ResourceNames)

	before := s.deployment(t, "a", "app").Spec.DownstreamResourcesGeneration
	cred.Data["password"] = []byte("second")
	testenv.Update(t, secrets(s.ns).Update, cred)
	d = s.eventuallyDeployment(t, "a", "app", func(d *fleet.BundleDeployment) bool { return d.Spec.DownstreamResourcesGeneration > before })
	assert.Equal(t, before+1, d.Spec.DownstreamResourcesGeneration)
	copied = testenv.RequireThere(t, secrets(home).Get, "cred")
	assert.Equal(t, "second", string(copied.Data["password"]), "the copy comes before the number that makes the agent read it")

	s.merge(t, "Bundle", "app", `{"spec":{"downstreamResources":[{"kind":"ConfigMap","name":"conf"}]}}`)
	testenv.RequireGone(t, secrets(home).Get, "Secret", "cred")
	testenv.RequireThere(t, configMaps(home).Get, "conf")
}

func TestHelmOp(t *testing.T) {
	s := parallelShop(t)
	testenv.Create(t, s.hub.Kubernetes.CoreV1().Secrets(s.ns).Create, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "account"}, Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{"username": []byte("joe"), "password": []byte("p")},
	})
	s.cluster(t, "a", nil)
	s.bundle(t, "app", "", func(b *fleet.Bundle) {
		everywhere(b)
		b.Spec.Resources = nil
		b.Spec.Helm = &fleet.HelmOptions{Repo: "https://charts.example.com", Chart: "c", Version: "1.*"}
		b.Spec.HelmOpOptions = &fleet.GenericMap{Data: map[string]any{"helmOpSecretName": "account"}}
	})
	testenv.EventuallyIs(t, s.hub.Fleet.Bundles(s.ns).Get, "app", func(b *fleet.Bundle) (bool, string) {
		ready := testenv.Condition(b.Status.Conditions, fleet.ConditionReady)
		return strings.HasPrefix(ready, `False BundleInvalid: spec.helm.version "1.*" is not the version of one chart`), ready
	})

	s.merge(t, "Bundle", "app", `{"spec":{"helm":{"version":"1.2.0"}}}`)
	d := s.deployment(t, "a", "app")
	assert.True(t, strings.HasPrefix(d.Spec.DeploymentID, ":"), d.Spec.DeploymentID)
	assert.Equal(t, "account", d.Spec.HelmChartOptions.Data["helmOpSecretName"])
	assert.NotContains(t, d.Labels, fleet.ContentNameLabel)
	account := testenv.EventuallyThere(t, s.hub.Kubernetes.CoreV1().Secrets(d.Namespace).Get, "account")
	assert.Equal(t, registration.SecretTypeHelmOp, string(account.Type))
	assert.Equal(t, "true", account.Labels[fleet.InternalSecretLabel])
	assert.Equal(t, "joe", string(account.Data["username"]))
	assert.True(t, metav1.IsControlledBy(account, d))
	testenv.EventuallyIs(t, s.hub.Kubernetes.RbacV1().Roles(d.Namespace).Get, registration.RoleDeploymentSecrets, func(r *rbacv1.Role) (bool, string) {
		return len(r.Rules) == 1 && slices.Equal(r.Rules[0].ResourceNames, []string{"account"}), fmt.Sprint(r.Rules)
	})
}
