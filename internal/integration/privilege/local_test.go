package privilege

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/testenv"
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
		testenv.RequireGone(t, deployments.Get, "Deployment", registration.AgentName)
		testenv.RequireGone(t, roles.Get, "ClusterRole", agentmanifest.ClusterRoleName(agentNamespace))
	}
	requireInstalled()
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
