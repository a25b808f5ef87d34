package charts_test

import (
	"context"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/inventory"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

func TestHubReleaseFromInstallToUninstall(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	s.install(t, charts.CRD, nil)
	defer s.uninstall(t, charts.CRD)
	cluster := s.register("hubs-life")
	s.awaitInInventory(cluster)
	before := s.inventory()

	s.install(t, charts.Hub, map[string]any{"apiServerURL": "https://one.example.com"})
	first := inventory.List(s.inventory().Since(before))
	for _, object := range []string{
		"Deployment cattle-fleet-system/fleet-controller",
		"MutatingAdmissionPolicy fleet-registration-creator", "MutatingAdmissionPolicyBinding fleet-registration-creator",
		"ValidatingAdmissionPolicy fleet-registration-creator", "ValidatingAdmissionPolicyBinding fleet-registration-creator",
		"ValidatingAdmissionPolicy fleet-agent-status", "ValidatingAdmissionPolicy fleet-agent-token",
	} {
		assert.Contains(t, first, object)
	}

	s.upgrade(t, charts.Hub, readValues(t, "testdata/fleet/full.values.yaml"))
	assert.Equal(t, "fleet-controller", s.budget("fleet-controller"))
	assert.Contains(t, s.hubConfig(), `"agentTLSMode": "strict"`)
	s.upgrade(t, charts.Hub, parseValues(t, "{bootstrap: {enabled: false}, metrics: {enabled: false}, admissionPolicies: {enabled: false}}"))
	assert.Empty(t, s.budget("fleet-controller"), "an upgrade removes what the values disable")
	assert.NotContains(t, inventory.List(s.inventory().Since(before)), "AdmissionPolicy")

	s.rollback(t, charts.Hub, 1)
	assert.Contains(t, s.hubConfig(), "https://one.example.com")
	assert.Equal(t, stable(first), stable(inventory.List(s.inventory().Since(before))), "a rollback restores the first release, and leaves nothing of the others")

	s.requireStillThere(cluster)
	s.uninstall(t, charts.Hub)
	s.requireAsBefore(before)
	s.requireStillThere(cluster)
}

var unstable = regexp.MustCompile(`(ReplicaSet|Pod|Secret) cattle-fleet-system/(fleet-controller-|sh\.helm\.release)[^,]*, `)

// stable removes the objects whose names differ between revisions.
func stable(objects string) string { return unstable.ReplaceAllString(objects, "") }

func (s *scene) budget(name string) string {
	s.Helper()
	budget, err := s.core.PolicyV1().PodDisruptionBudgets(systemNamespace).Get(context.Background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	require.NoError(s, err)
	return budget.Name
}

func (s *scene) hubConfig() string {
	s.Helper()
	configMap, err := s.core.CoreV1().ConfigMaps(systemNamespace).Get(context.Background(), "fleet-controller", metav1.GetOptions{})
	require.NoError(s, err)
	return configMap.Data["config"]
}

func TestAgentReleaseFromInstallToUninstall(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	before := s.inventory()
	s.install(t, charts.Agent, readValues(t, "testdata/fleet-agent/minimal.values.yaml"))
	secret, err := s.bootstrapSecret()
	require.NoError(t, err)
	require.NoError(t, s.core.CoreV1().Secrets(systemNamespace).Delete(t.Context(), secret.Name, metav1.DeleteOptions{}), "as the agent does")

	again := readValues(t, "testdata/fleet-agent/replicas.values.yaml")
	again["token"] = "a-fresh-token"
	s.upgrade(t, charts.Agent, again)
	secret, err = s.bootstrapSecret()
	require.NoError(t, err, "an upgrade with a fresh token brings it to the agent")
	assert.Equal(t, "a-fresh-token", string(secret.Data["token"]))
	assert.NotEmpty(t, s.budget("fleet-agent-pod-disruption-budget"))

	s.rollback(t, charts.Agent, 1)
	assert.Empty(t, s.budget("fleet-agent-pod-disruption-budget"))
	s.uninstall(t, charts.Agent)
	s.requireAsBefore(before)
}

func (s *scene) bootstrapSecret() (*corev1.Secret, error) {
	return s.core.CoreV1().Secrets(systemNamespace).Get(context.Background(), "fleet-agent-bootstrap", metav1.GetOptions{})
}
