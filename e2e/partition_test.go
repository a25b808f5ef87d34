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
	s.step("hub and member are cut off from each other", func() { heal = s.cut() })
	s.step("the hub comes back and grants the request that waits", func() {
		s.fail(s.installHub(s.Context(), charts, s.options.tag))
		waiting.at(granted)
	})
	var before *enrolled
	s.step("another cluster is to be registered, and cannot be reached", func() {
		before = s.enrol("before")
		before.condition(fleet.ConditionImported, "False Unreachable")
	})
	s.step("the one that has registered is disconnected", func() { after.condition(fleet.ConditionConnected, "False Disconnected") })
	s.step("hub and member reach each other again", func() { s.fail(heal()) })
	s.step("the one that has registered goes on with the credential it has", func() {
		after.registered()
		assert.Equal(s, request, after.theRequest())
	})
	s.step("the one that waited gets its answer", func() {
		waiting.registered()
		assert.NotEmpty(s, waiting.theRequest())
	})
	s.step("the one that had not begun registers", func() { before.registered() })
}

// waiting stops the hub, and returns a cluster whose agent has created its request since.
func (s *scene) waiting() (e *enrolled) {
	s.Helper()
	values := s.token("tok", time.Hour)
	s.step("the hub is stopped", s.stopHub)
	s.step("an agent asks and gets no answer", func() { e = s.asks("waiting", values) })
	return e
}

// asks installs an agent with the values of a token, and returns its cluster when the agent has created its request.
func (s *scene) asks(name, values string) *enrolled {
	s.Helper()
	id := s.named(name)
	e := s.installAgent(registration.ClusterName(id), id, values, "--create-namespace")
	e.at(asked)
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
