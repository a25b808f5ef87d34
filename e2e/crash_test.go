//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestMemberCrash(t *testing.T) {
	s := beginAlone(t)
	s.workspace()
	m, request := s.importAndAwait("m")
	s.step("the member loses power", func() { s.crash(s.member) })
	s.step("the hub reports it", func() { m.condition(fleet.ConditionConnected, "False Disconnected") })
	s.step("the member has power again", func() { s.restart(s.member) })
	s.step("the agent continues with its credential", func() {
		m.registered()
		assert.Equal(s, request, m.theRequest())
	})
}

func TestHubCrash(t *testing.T) {
	s := beginAlone(t)
	s.workspace()
	m, request := s.importAndAwait("m")
	var late *enrolled
	s.step("a cluster begins to register", func() { late = s.enrol("late") })
	s.step("the hub loses power", func() { s.crash(s.hub) })
	s.step("the hub has power again", func() { s.restart(s.hub) })
	s.step("the registered agent continues with its credential", func() {
		m.awaitNextHeartbeat()
		assert.Equal(s, request, m.theRequest())
	})
	s.step("the other one registers", func() { late.registered() })
}

// importAndAwait imports the member as a Cluster, and returns when its agent is registered and runs as its Bundle specifies.
func (s *scene) importAndAwait(name string) (m *enrolled, request string) {
	s.Helper()
	s.step("a cluster registers", func() {
		m = s.enrol(name)
		m.condition(fleet.ConditionImported, "True Imported")
		c := m.registered()
		assert.Equal(s, m.agentNamespace, c.Status.Agent.Namespace)
		assert.Equal(s, 1, c.Status.Agent.Nodes.Ready)
		m.awaitManagedByBundle()
		request = m.theRequest()
	})
	return m, request
}

func (e *enrolled) awaitNextHeartbeat() {
	e.s.Helper()
	var before time.Time
	e.s.until(e.String()+": another heartbeat", func(ctx context.Context) (bool, string) {
		c, err := e.get(ctx)
		if err != nil {
			return false, err.Error()
		}
		leases, err := e.s.hub.kube.CoordinationV1().Leases(c.Status.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		last := view.LastHeartbeat(&c.Status.Agent.LastSeen, leases.Items).Time
		if before.IsZero() {
			before = last
		}
		return last.After(before), fmt.Sprintf("the last one was at %s", last)
	})
	e.condition(fleet.ConditionConnected, "True")
}

// crash stops a cluster as a power cut does. If the test does not restart it, a cleanup at the end of the test does.
func (s *scene) crash(c *cluster) {
	s.Helper()
	s.fail(c.Crash(s.Context()))
	s.down = c
	s.undo("starting "+c.Name(), func(ctx context.Context) error {
		if s.down == nil {
			return nil
		}
		return c.Restart(ctx)
	})
}

func (s *scene) restart(c *cluster) {
	s.Helper()
	s.fail(c.Restart(s.Context()))
	s.down = nil
}
