package privilege

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func (s *scene) requireNoCredentialOfTheHub(t *testing.T) {
	t.Helper()
	secret := testenv.RequireThere(t, s.Hub.Kubernetes.CoreV1().Secrets("fleet-local").Get, registration.LocalSecret)
	parsed, err := clientcmd.Load(secret.Data[registration.KubeconfigValue])
	require.NoError(t, err)
	for name, user := range parsed.AuthInfos {
		assert.Empty(t, user.Token+user.Password+string(user.ClientKeyData)+user.TokenFile, name)
	}
	tokens := testenv.List(t, s.Hub.Kubernetes.CoreV1().Secrets("").List, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)})
	for _, token := range tokens.Items {
		assert.NotEqual(t, testenv.SystemNamespace, token.Namespace, "%s is a token of the hub that does not end", token.Name)
	}
}

// The hub installs the agent of its own cluster. It removes it where the chart says so, and when the Cluster is deleted, then with its deployments and
// with a token of that agent, which the policies must allow.
func TestLocalAgentWithTheRightsOfTheChart(t *testing.T) {
	sample.Long(t)
	hub, _ := testenv.Clusters(t)
	hub.Hub(t, hub.InstallChart(t, chartValues(hub, false)))
	hub.AwaitAdmission(t)
	deployments, roles := hub.Kubernetes.AppsV1().Deployments(agentNamespace), hub.Kubernetes.RbacV1().ClusterRoles()
	requireInstalled := func() {
		t.Helper()
		hub.ClusterCondition(t, "fleet-local", registration.LocalCluster, fleet.ConditionImported, "True Imported")
		testenv.RequireThere(t, deployments.Get, registration.AgentName)
		testenv.RequireThere(t, roles.Get, agentmanifest.ClusterRoleName(agentNamespace))
	}
	requireRemoved := func() {
		t.Helper()
		testenv.RequireGone(t, hub.Kubernetes.SchedulingV1().PriorityClasses().Get, "PriorityClass", agentmanifest.PriorityClassName)
		testenv.RequireGone(t, deployments.Get, "Deployment", registration.AgentName)
		testenv.RequireGone(t, roles.Get, "ClusterRole", agentmanifest.ClusterRoleName(agentNamespace))
	}
	requireInstalled()

	// Later imports delete scheduling objects that the Cluster no longer requires, and replace the PriorityClass.
	local, classes := &testenv.Stage{Hub: hub, Namespace: "fleet-local"}, hub.Kubernetes.SchedulingV1().PriorityClasses()
	for n, customization := range []string{`null`, `{"priorityClass":{"value":1}}`, `{"priorityClass":{"value":2}}`, `null`, `{"priorityClass":{"value":3}}`} {
		generation := int64(n + 1)
		local.PatchSpec(t, registration.LocalCluster, fmt.Sprintf(`{"agentSchedulingCustomization":%s,"redeployAgentGeneration":%d}`, customization, generation))
		local.EventuallyCluster(t, registration.LocalCluster, func(c *fleet.Cluster) (bool, string) {
			deployed := c.Status.AgentDeployedGeneration
			return deployed != nil && *deployed == generation, fmt.Sprintf("import %d with %s: %s", generation, customization,
				testenv.Condition(c.Status.Conditions, fleet.ConditionImported))
		})
		if customization == "null" {
			testenv.RequireGone(t, classes.Get, "PriorityClass", agentmanifest.PriorityClassName)
		} else {
			assert.Contains(t, customization, fmt.Sprint(testenv.RequireThere(t, classes.Get, agentmanifest.PriorityClassName).Value))
		}
	}

	hub.InstallChart(t, chartValues(hub, true))
	hub.ClusterCondition(t, "fleet-local", registration.LocalCluster, fleet.ConditionImported, "True "+fleet.ReasonLocalAgentDisabled)
	requireRemoved()

	hub.InstallChart(t, chartValues(hub, false))
	requireInstalled()
	clusters := hub.Fleet.Clusters("fleet-local")
	require.NoError(t, clusters.Delete(t.Context(), registration.LocalCluster, metav1.DeleteOptions{}))
	testenv.RequireGone(t, clusters.Get, "Cluster", registration.LocalCluster)
	requireRemoved()
}
