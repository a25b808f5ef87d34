//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Clusters that were registered with the charts and images of the previous commit continue after an upgrade of the charts, and their
// agents are upgraded. The log names the previous commit.
func TestUpgrade(t *testing.T) {
	if shared.options.previous == "" {
		t.Skip("there is nothing to upgrade from: " + os.Getenv("MUSTER_E2E_NO_PREVIOUS"))
	}
	s := beginBare(t)
	about, err := os.ReadFile(filepath.Join(s.options.previous, "ABOUT"))
	s.fail(err)
	s.Logf("upgrading from %s", strings.TrimSpace(string(about)))

	s.step("the hub of this commit, if there is one, is removed", func() { s.fail(s.uninstallHub(s.Context())) })
	s.step("the charts before it are installed", func() {
		s.undo("the hub of this commit", func(ctx context.Context) error { return s.installHub(ctx, charts, s.options.tag) })
		s.fail(s.installHub(s.Context(), filepath.Join(s.options.previous, "charts"), previousTag))
	})
	s.workspace()
	m, request := s.importAndAwait("m")
	s.step("they run an agent of their own", func() { s.agentImage(m, previousTag) })
	s.step("the charts are upgraded to this commit", func() {
		s.fail(s.installHub(s.Context(), charts, s.options.tag))
		s.setInstalled(true)
		s.hubsReady(1)
	})
	s.step("the agent follows by its Bundle", func() { s.agentImage(m, s.options.tag) })
	s.step("the agent continues with its credential", func() {
		m.awaitNextHeartbeat()
		m.condition(fleet.ConditionReady, "True")
		assert.Equal(s, request, m.theRequest())
	})
	s.step("a new cluster registers", func() { s.enrol("new").registered() })
}

// agentImage waits until the agent runs with an image with that tag.
func (s *scene) agentImage(e *enrolled, tag string) {
	s.Helper()
	s.until("the agent of "+e.String()+" to run with tag "+tag, func(ctx context.Context) (bool, string) {
		pods, err := e.on.pods(ctx, e.agentNamespace, agentPods)
		if err != nil || len(pods) != 1 {
			return seen(err, false, "it has not one pod")
		}
		image := pods[0].Spec.Containers[0].Image
		return isReady(pods[0]) && strings.HasSuffix(image, ":"+tag), "it runs with " + image
	})
}
