//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestTheHubInstallsTheAgent(t *testing.T) {
	s := begin(t)
	s.workspace()
	var m *enrolled
	s.step("a person gives the hub a kubeconfig of the member", func() { m = s.enrol("m") })
	s.step("the hub installs the agent there", func() { m.condition(fleet.ConditionImported, "True Imported") })
	s.step("the agent registers and exchanges its token for a credential", func() {
		c := m.registered()
		assert.Equal(s, m.agentNamespace, c.Status.Agent.Namespace)
		assert.Equal(s, 1, c.Status.Agent.Nodes.Ready)
	})
	s.step("the agent's Bundle takes the agent over", func() { m.takenOver() })
}

func TestTheAgentRegistersWithAToken(t *testing.T) {
	s := begin(t)
	s.takeChart()
	s.workspace()
	var values string
	var m *enrolled
	s.step("a person makes a token", func() { values = s.token("tok", time.Hour) })
	s.step("helm installs the agent with its values", func() {
		id := s.named("client")
		m = s.installAgent(registration.ClusterName(id), id, values, "--create-namespace", "--wait", "--set-string", "labels.env=test")
	})
	s.step("the hub makes the Cluster, with its labels", func() {
		c := m.registered()
		assert.Equal(s, "test", c.Labels["env"])
		assert.Empty(s, c.Spec.KubeConfigSecret)
		m.condition(fleet.ConditionImported, "True AgentInitiated")
	})
	s.step("the agent's Bundle takes the agent over", func() { m.takenOver() })
}

func TestAClusterThatIsPreparedGetsItsAgent(t *testing.T) {
	s := begin(t)
	s.takeChart()
	s.workspace()
	id := s.named("prepared")
	var values string
	var m *enrolled
	s.step("a person prepares a Cluster with a client ID", func() {
		_, err := s.hub.fleet.Clusters(s.id).Create(s.Context(), &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.id, Name: "prepared", Labels: map[string]string{"env": "prepared"}},
			Spec:       fleet.ClusterSpec{ClientID: id},
		}, metav1.CreateOptions{})
		s.fail(err)
		values = s.token("tok", time.Hour)
	})
	s.step("helm installs an agent that has this ID", func() {
		m = s.installAgent("prepared", id, values, "--create-namespace", "--wait")
	})
	s.step("the agent gets the prepared Cluster and no other", func() {
		assert.Equal(s, "prepared", m.registered().Labels["env"])
		list, err := s.hub.fleet.Clusters(s.id).List(s.Context(), metav1.ListOptions{})
		require.NoError(s, err)
		assert.Len(s, list.Items, 1)
	})
}

func TestTheHubRegistersItself(t *testing.T) {
	s := beginAlone(t)
	local := &enrolled{s: s, on: s.hub, namespace: localNamespace, name: "local", agentNamespace: systemNamespace}
	s.step("the hub's own cluster registers", func() {
		assert.Equal(s, "local", local.registered().Labels["name"])
	})
	s.step("a person wants no agent there", func() {
		s.configure("--set", "bootstrap.localAgentDisabled=true")
		local.condition(fleet.ConditionImported, "True LocalAgentDisabled")
	})
	s.step("the agent is gone, the Cluster stays", func() {
		s.until("the agent's Deployment and credential to be gone", func(ctx context.Context) (bool, string) {
			_, errDeployment := s.hub.kube.AppsV1().Deployments(systemNamespace).Get(ctx, agentRelease, metav1.GetOptions{})
			_, errSecret := s.hub.kube.CoreV1().Secrets(systemNamespace).Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
			return apierrors.IsNotFound(errDeployment) && apierrors.IsNotFound(errSecret), "it is there"
		})
	})
	s.step("a person wants it again", func() {
		s.fail(s.installHub(s.Context(), charts, s.options.tag))
		local.registered()
	})
}

// takenOver waits until the agent runs as its Bundle specifies.
func (e *enrolled) takenOver() {
	e.s.Helper()
	e.cluster("the agent to run as its Bundle says", func(c *fleet.Cluster) bool {
		return registration.IsManagedGeneration(c.Status.Agent.Generation)
	})
	e.condition(fleet.ConditionReady, "True")
}
