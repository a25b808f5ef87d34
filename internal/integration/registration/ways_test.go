package registration

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestManagerInitiated(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	hub, member := s.Hub, s.Member
	namespace, agentNamespace := s.Namespace, member.Namespace(t)

	hub.Import(t, namespace, "m1", member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	hub.ClusterCondition(t, namespace, "m1", fleet.ConditionImported, "True Imported")
	member.Agent(t, agentNamespace)

	cluster := hub.ClusterCondition(t, namespace, "m1", fleet.ConditionRegistered, "True")
	require.Equal(t, agentNamespace, cluster.Status.Agent.Namespace)
	testenv.RequireCredential(t, member, agentNamespace, "m1")
}

func TestAgentInitiated(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	hub, member := s.Hub, s.Member
	namespace, agentNamespace := s.Namespace, member.Namespace(t)

	values := hub.Token(t, namespace, "tok", fleet.ClusterRegistrationTokenSpec{})
	testenv.BootstrapAgent(t, member, agentNamespace, values, map[string]string{"config": `{"clientID":"edge-1","labels":{"env":"test"}}`})
	member.Agent(t, agentNamespace)

	name := registration.ClusterName("edge-1")
	cluster := hub.ClusterCondition(t, namespace, name, fleet.ConditionRegistered, "True")
	require.Equal(t, "test", cluster.Labels["env"])
	testenv.RequireCredential(t, member, agentNamespace, name)
}

func TestLocalCluster(t *testing.T) {
	sample.Long(t)
	hub, _ := testenv.Clusters(t)
	settings := hub.Reachable()
	settings["bootstrap"] = map[string]any{"namespace": "fleet-local", "agentNamespace": "cattle-fleet-local-system"}
	hub.Configure(t, settings)
	hub.Hub(t, testenv.WithBootstrap)

	hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionImported, "True Imported")
	hub.Agent(t, "cattle-fleet-local-system")

	cluster := hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionRegistered, "True")
	require.Equal(t, "local", cluster.Labels["name"])
	testenv.RequireCredential(t, hub, "cattle-fleet-local-system", "local")
	hub.AwaitOwnBundle(t, "fleet-local", "local")

	settings["bootstrap"] = map[string]any{"namespace": "fleet-local", "agentNamespace": "cattle-fleet-local-system", "localAgentDisabled": true}
	hub.Configure(t, settings)
	cluster = hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionImported, "True LocalAgentDisabled")
	require.Nil(t, cluster.Status.AgentDeployedGeneration)
	_, err := hub.Kubernetes.AppsV1().Deployments("cattle-fleet-local-system").Get(t.Context(), registration.AgentName, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = hub.Kubernetes.CoreV1().Secrets("cattle-fleet-local-system").Get(t.Context(), registration.CredentialSecret, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
