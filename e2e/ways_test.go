//go:build e2e

package e2e

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestLocalCluster(t *testing.T) {
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
func (e *enrolled) awaitManagedByBundle() {
	e.s.Helper()
	e.cluster("the agent to run with the spec of its Bundle", func(c *fleet.Cluster) bool {
		return registration.IsManagedGeneration(c.Status.Agent.Generation)
	})
	e.condition(fleet.ConditionReady, "True")
}
