//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// One partition affects three clusters in different phases: one is registered, one waits for its credential, one has not started.
func TestPartition(t *testing.T) {
	s := beginAlone(t)
	s.takeChart()
	s.workspace()
	registered, request := s.importAndAwait("registered")
	waiting := s.waiting()
	var heal func() error
	s.step("hub and member are disconnected from each other", func() { heal = s.cut() })
	s.step("the hub starts and grants the waiting request", func() {
		s.fail(s.installHub(s.Context(), charts, s.options.tag))
		waiting.at(granted)
	})
	var unstarted *enrolled
	s.step("another cluster is to be imported, and its member cannot be reached", func() {
		unstarted = s.enrol("unstarted")
		unstarted.condition(fleet.ConditionImported, "False Unreachable")
	})
	s.step("the registered cluster is reported as disconnected", func() { registered.condition(fleet.ConditionConnected, "False Disconnected") })
	s.step("hub and member reach each other again", func() { s.fail(heal()) })
	s.step("the registered agent continues with its credential", func() {
		registered.registered()
		assert.Equal(s, request, registered.theRequest())
	})
	s.step("the waiting agent reads its credential", func() {
		waiting.registered()
		assert.NotEmpty(s, waiting.theRequest())
	})
	s.step("the imported cluster registers", func() { unstarted.registered() })
}

// waiting stops the hub, lets an agent create its request while no hub runs, and returns the cluster of that agent.
func (s *scene) waiting() (e *enrolled) {
	s.Helper()
	values := s.token("tok", time.Hour)
	s.step("the hub is stopped", s.stopHub)
	s.step("an agent creates its request and gets no answer", func() { e = s.asks("waiting", values) })
	return e
}

// asks installs an agent with the values of a token, and returns its cluster when the agent has created its request.
func (s *scene) asks(name, values string) *enrolled {
	s.Helper()
	id := s.named(name)
	e := s.installAgent(registration.ClusterName(id), id, values, "--create-namespace")
	e.at(hasRequest)
	return e
}

// cut blocks the network between hub and member. If the test does not call heal, a cleanup at the end of the test does.
func (s *scene) cut() (heal func() error) {
	s.Helper()
	heal, err := s.member.Cut(s.Context(), s.hub.Cluster)
	s.fail(err)
	s.undo("healing the partition", func(context.Context) error { return heal() })
	return heal
}
