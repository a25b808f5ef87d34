package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestAManagerInitiatedClusterRegisters(t *testing.T) {
	hub, member := clusters(t)
	hub.Configure(t, hub.Reachable())
	hub.Hub(t)
	namespace, agentNamespace := hub.Namespace(t), member.Namespace(t)

	hub.Import(t, namespace, "m1", member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	hub.ClusterCondition(t, namespace, "m1", fleet.ConditionImported, "True Imported")
	member.Agent(t, agentNamespace)

	cluster := hub.ClusterCondition(t, namespace, "m1", fleet.ConditionRegistered, "True")
	require.Equal(t, agentNamespace, cluster.Status.Agent.Namespace)
	requireCredential(t, member, agentNamespace, "m1")
}

func TestAnAgentInitiatedClusterRegisters(t *testing.T) {
	hub, member := clusters(t)
	hub.Configure(t, hub.Reachable())
	hub.Hub(t)
	namespace, agentNamespace := hub.Namespace(t), member.Namespace(t)

	values := hub.Token(t, namespace, "tok", fleet.ClusterRegistrationTokenSpec{})
	bootstrapAgent(t, member, agentNamespace, values, map[string]string{"config": `{"clientID":"edge-1","labels":{"env":"test"}}`})
	member.Agent(t, agentNamespace)

	name := registration.ClusterName("edge-1")
	cluster := hub.ClusterCondition(t, namespace, name, fleet.ConditionRegistered, "True")
	require.Equal(t, "test", cluster.Labels["env"])
	requireCredential(t, member, agentNamespace, name)
}

// bootstrapAgent does what the chart fleet-agent does before the agent starts.
func bootstrapAgent(t *testing.T, member *testenv.Cluster, namespace string, v registration.Values, config map[string]string) {
	t.Helper()
	core := member.Kubernetes.CoreV1()
	_, err := core.Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: registration.BootstrapSecret},
		Data: map[string][]byte{
			registration.BootstrapAPIServerURL:                []byte(v.APIServerURL),
			registration.BootstrapAPIServerCA:                 []byte(v.APIServerCA),
			registration.BootstrapClusterNamespace:            []byte(v.ClusterNamespace),
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

// requireCredential waits until the agent has stored its credential and dropped the one it registered with.
func requireCredential(t *testing.T, member *testenv.Cluster, namespace, cluster string) {
	t.Helper()
	core := member.Kubernetes.CoreV1()
	testenv.Eventually(t, func() (bool, string) {
		_, err := core.Secrets(namespace).Get(t.Context(), registration.BootstrapSecret, metav1.GetOptions{})
		return apierrors.IsNotFound(err), "Secret " + registration.BootstrapSecret + " is still there"
	})
	stored, err := core.Secrets(namespace).Get(t.Context(), registration.CredentialSecret, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, cluster, string(stored.Data[registration.CredentialClusterName]))
	require.NotEmpty(t, stored.Data[registration.CredentialKubeconfig])
}

func TestTheHubRegistersItsOwnCluster(t *testing.T) {
	hub, _ := clusters(t)
	settings := hub.Reachable()
	settings["bootstrap"] = map[string]any{"namespace": "fleet-local", "agentNamespace": "cattle-fleet-local-system"}
	hub.Configure(t, settings)
	hub.Hub(t, withBootstrap)

	hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionImported, "True Imported")
	hub.Agent(t, "cattle-fleet-local-system")

	cluster := hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionRegistered, "True")
	require.Equal(t, "local", cluster.Labels["name"])
	requireCredential(t, hub, "cattle-fleet-local-system", "local")

	settings["bootstrap"] = map[string]any{"namespace": "fleet-local", "agentNamespace": "cattle-fleet-local-system", "localAgentDisabled": true}
	hub.Configure(t, settings)
	cluster = hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionImported, "True LocalAgentDisabled")
	require.Nil(t, cluster.Status.AgentDeployedGeneration)
	_, err := hub.Kubernetes.AppsV1().Deployments("cattle-fleet-local-system").Get(t.Context(), registration.AgentName, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = hub.Kubernetes.CoreV1().Secrets("cattle-fleet-local-system").Get(t.Context(), registration.CredentialSecret, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
