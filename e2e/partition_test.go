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
	after, request := s.settled("after")
	waiting := s.waiting()
	var heal func() error
	s.step("hub and member are disconnected from each other", func() { heal = s.cut() })
	s.step("the hub starts and grants the waiting request", func() {
		s.fail(s.installHub(s.Context(), charts, s.options.tag))
		waiting.at(granted)
	})
	var before *enrolled
	s.step("another cluster is to be imported, and its member cannot be reached", func() {
		before = s.enrol("before")
		before.condition(fleet.ConditionImported, "False Unreachable")
	})
	s.step("the registered cluster is reported as disconnected", func() { after.condition(fleet.ConditionConnected, "False Disconnected") })
	s.step("hub and member reach each other again", func() { s.fail(heal()) })
	s.step("the registered agent continues with its credential", func() {
		after.registered()
		assert.Equal(s, request, after.theRequest())
	})
	s.step("the waiting agent reads its credential", func() {
		waiting.registered()
		assert.NotEmpty(s, waiting.theRequest())
	})
	s.step("the imported cluster registers", func() { before.registered() })
}

// waiting stops the hub, and returns a cluster whose agent has then created its request.
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

// cut separates the clusters, and reconnects them at the latest when the scene ends.
func (s *scene) cut() (heal func() error) {
	s.Helper()
	heal, err := s.member.Cut(s.Context(), s.hub.Cluster)
	s.fail(err)
	s.undo("healing the partition", func(context.Context) error { return heal() })
	return heal
}
