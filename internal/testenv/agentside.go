package testenv

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/agent"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// BootstrapAgent creates the objects that the chart fleet-agent creates before the agent starts.
func BootstrapAgent(t testing.TB, member *Cluster, namespace string, v registration.Values, config map[string]string) {
	t.Helper()
	core := member.Kubernetes.CoreV1()
	_, err := core.Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: registration.BootstrapSecret},
		Data: map[string][]byte{
			registration.BootstrapAPIServerURL:                []byte(v.APIServerURL),
			registration.BootstrapAPIServerCA:                 []byte(v.APIServerCA),
			registration.BootstrapWorkspace:                   []byte(v.Workspace),
			registration.BootstrapToken:                       []byte(v.Token),
			registration.BootstrapTokenName:                   []byte(v.TokenName),
			registration.BootstrapSystemRegistrationNamespace: []byte(v.SystemRegistrationNamespace),
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: registration.AgentConfigMap}, Data: config,
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// RegisteredAgent runs an agent on the member with a token of the hub, and waits until it has registered and sent its first heartbeat.
func (s *Stage) RegisteredAgent(
	t testing.TB, values registration.Values, namespace, clientID string, change ...func(*agent.Config),
) (cluster string, running *Running) {
	t.Helper()
	BootstrapAgent(t, s.Member, namespace, values, map[string]string{"config": fmt.Sprintf(`{"clientID":%q}`, clientID)})
	running = s.Member.Agent(t, namespace, change...)
	cluster = registration.ClusterName(clientID)
	s.Hub.ClusterCondition(t, s.Namespace, cluster, fleet.ConditionRegistered, "True")
	RequireCredential(t, s.Member, namespace, cluster)
	return cluster, running
}

// RequireCredential waits until the agent has stored its credential and deleted its bootstrap identity.
func RequireCredential(t testing.TB, member *Cluster, namespace, cluster string) {
	t.Helper()
	core := member.Kubernetes.CoreV1()
	RequireGone(t, core.Secrets(namespace).Get, "Secret", registration.BootstrapSecret)
	stored := RequireThere(t, core.Secrets(namespace).Get, registration.CredentialSecret)
	require.Equal(t, cluster, string(stored.Data[registration.CredentialClusterName]))
	require.NotEmpty(t, stored.Data[registration.CredentialKubeconfig])
}

// BootstrapValues are the values with which an agent registers, from its bootstrap Secret.
func BootstrapValues(secret *corev1.Secret) registration.Values {
	return registration.Values{
		Workspace:                   string(secret.Data[registration.BootstrapWorkspace]),
		Token:                       string(secret.Data[registration.BootstrapToken]),
		TokenName:                   string(secret.Data[registration.BootstrapTokenName]),
		SystemRegistrationNamespace: string(secret.Data[registration.BootstrapSystemRegistrationNamespace]),
	}
}

// AwaitOwnBundle waits until the agent of a Cluster reports that it has deployed its own Bundle. In a test, the agent does not end with its
// Deployment as a pod does, so until then it could restore objects that the test removes.
func (c *Cluster) AwaitOwnBundle(t testing.TB, namespace, cluster string) {
	t.Helper()
	deployments := c.Fleet.BundleDeployments(registration.ClusterNamespace(namespace, cluster))
	EventuallyIs(t, deployments.Get, registration.AgentBundleName(cluster), func(d *fleet.BundleDeployment) (bool, string) {
		deployed := Condition(d.Status.Conditions, fleet.ConditionDeployed)
		return d.Status.AppliedDeploymentID == d.Spec.DeploymentID && strings.HasPrefix(deployed, "True"),
			fmt.Sprintf("the agent's own Bundle must be %s and is %s; Deployed is %s", d.Spec.DeploymentID, d.Status.AppliedDeploymentID, deployed)
	})
}
