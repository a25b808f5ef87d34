//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/inventory"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestTheHubGetsAnotherAddressAndCA(t *testing.T) {
	s := beginAlone(t)
	s.workspace()
	m, request := s.settled("m")
	old, err := s.hub.way()
	s.fail(err)
	var next way
	s.step("the hub's API server gets another address, with a certificate of another CA", func() {
		next.url, next.ca, err = s.hub.Move(s.Context())
		s.fail(err)
	})
	s.step("a person tells the hub", func() {
		s.undo("the address as it was", func(ctx context.Context) error {
			return s.moveHub(ctx, old)
		})
		s.fail(s.tellWay(s.Context(), next))
	})
	s.step("the agent goes over to it without registering again", func() {
		m.goesBy(next)
		assert.Equal(s, request, m.theRequest())
	})
	s.step("it keeps nothing of the old one", func() {
		credential, err := s.member.kube.CoreV1().Secrets(m.agentNamespace).Get(s.Context(), registration.CredentialSecret, metav1.GetOptions{})
		s.fail(err)
		kubeconfig := string(credential.Data[registration.CredentialKubeconfig])
		assert.Contains(s, kubeconfig, next.url)
		assert.NotContains(s, kubeconfig, old.url)
	})
	s.step("a cluster that comes now uses it from the beginning", func() {
		late := s.enrol("late")
		late.registered()
		late.goesBy(next)
	})
}

// tellWay upgrades the chart with the new address and CA.
func (s *suite) tellWay(ctx context.Context, w way) error {
	values, err := s.hubValues(w, s.options.tag)
	if err != nil {
		return err
	}
	_, err = s.helm(ctx, s.hub, append([]string{"upgrade", "--wait", "fleet", charts + "/fleet"}, values...)...)
	return err
}

// goesBy waits until the agent uses that address of the hub and sends a heartbeat.
func (e *enrolled) goesBy(w way) {
	e.s.Helper()
	e.cluster("the agent to reach the hub by "+w.url, func(c *fleet.Cluster) bool {
		return c.Status.Agent.Hub != nil && c.Status.Agent.Hub.APIServerURL == w.url && c.Status.Agent.Hub.Pending == ""
	})
	e.heardAgain()
}

// moveHub configures another address of the hub and waits until all agents use it, so that no agent is still moving in the next scene. The
// agent of the hub's own cluster always uses the Service of the API server.
func (s *scene) moveHub(ctx context.Context, w way) error {
	if err := s.tellWay(ctx, w); err != nil {
		return err
	}
	return waitFor(ctx, "all agents to reach the hub by "+w.url, func(ctx context.Context) (bool, string) {
		list, err := s.hub.fleet.Clusters("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, c := range list.Items {
			if c.Namespace == localNamespace {
				continue
			}
			if c.Status.Agent.Hub == nil || c.Status.Agent.Hub.APIServerURL != w.url {
				return false, c.Namespace + "/" + c.Name + " does not"
			}
		}
		return true, ""
	})
}

func TestTheAgentMovesToAnotherNamespace(t *testing.T) {
	s := begin(t)
	s.workspace()
	m, _ := s.settled("m")
	from := m.agentNamespace
	s.step("a person wants the agent in another namespace", func() {
		m.agentNamespace = s.named(m.name + "-elsewhere")
		m.others = append(m.others, from)
		m.patch(func(c *fleet.Cluster) { c.Spec.AgentNamespace = m.agentNamespace })
	})
	s.step("the agent registers from there", func() {
		m.cluster("the agent to be in "+m.agentNamespace, func(c *fleet.Cluster) bool { return c.Status.Agent.Namespace == m.agentNamespace })
		m.registered()
		m.takenOver()
	})
	s.step("nothing of it is left where it was", func() {
		s.fail(s.member.nothingLeft(s.Context(), from, inventory.OfNamespace))
	})
	s.step("the hub has one request for it", func() { assert.True(s, strings.HasPrefix(m.theRequest(), "request-")) })
}
