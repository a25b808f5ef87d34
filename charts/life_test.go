package charts_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/charts"
)

func TestTheHubsLifeLeavesNothingBehind(t *testing.T) {
	s := newScene(t)
	s.install(t, charts.CRD, nil)
	defer s.uninstall(t, charts.CRD)
	cluster := s.register("hubs-life")
	s.awaitInInventory(cluster)
	before := inventory(t, s.config)

	s.install(t, charts.Hub, map[string]any{"apiServerURL": "https://one.example.com"})
	first := difference(inventory(t, s.config), before)
	assert.Contains(t, strings.Join(first, "\n"), "deployments.apps cattle-fleet-system/fleet-controller")

	s.upgrade(t, charts.Hub, readValues(t, "testdata/fleet/full.values.yaml"))
	assert.Equal(t, "fleet-controller", s.budget("fleet-controller"))
	assert.Contains(t, s.hubConfig(), `"agentTLSMode": "strict"`)
	s.upgrade(t, charts.Hub, map[string]any{"bootstrap": map[string]any{"enabled": false}, "metrics": map[string]any{"enabled": false}})
	assert.Empty(t, s.budget("fleet-controller"), "an upgrade takes away what is not wanted any more")

	s.rollback(t, charts.Hub, 1)
	assert.Contains(t, s.hubConfig(), "https://one.example.com")
	assert.ElementsMatch(t, stable(first), stable(difference(inventory(t, s.config), before)), "a rollback brings the first release back, and nothing of the others")

	s.requireStillThere(cluster)
	s.uninstall(t, charts.Hub)
	eventuallyAsBefore(t, s.config, before)
	s.requireStillThere(cluster)
}

// stable leaves out what has another name each time.
func stable(objects []string) []string {
	var kept []string
	for _, object := range objects {
		if !regexp.MustCompile(`^(replicasets|pods)\.|sh\.helm\.release`).MatchString(object) {
			kept = append(kept, object)
		}
	}
	return kept
}

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

func TestTheAgentsLifeLeavesNothingBehind(t *testing.T) {
	s := newScene(t)
	before := inventory(t, s.config)
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
	eventuallyAsBefore(t, s.config, before)
}

func (s *scene) bootstrapSecret() (*corev1.Secret, error) {
	return s.core.CoreV1().Secrets(systemNamespace).Get(context.Background(), "fleet-agent-bootstrap", metav1.GetOptions{})
}
