package bundle

import (
	"testing"

	"github.com/stretchr/testify/assert"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestNothingIsSentToAQuarantinedCluster(t *testing.T) {
	quarantined := someCluster()
	quarantined.Spec.Quarantined = true
	changed := toAlice()
	changed.Generation, changed.Spec.TargetNamespace = 2, "other"
	d := deployed(t, toAlice())
	d.Status = fleet.BundleDeploymentStatus{AppliedDeploymentID: d.Spec.DeploymentID, Ready: true, NonModified: true}

	for name, now := range map[string][]*fleet.Bundle{"changed": {changed}, "gone": nil} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, quarantined, d)
			for _, b := range now {
				s.has(t, b)
			}
			after, out := s.pass(t, quarantined)
			assert.Empty(t, s.log.take())
			assert.Equal(t, "1/1", after.Status.Display.ReadyBundles, "what it runs is what it ran")
			assert.True(t, out.IsDone())
			assert.Equal(t, 1, s.rights.forbidden, "and it reads no Content")

			s.pass(t, someCluster())
			assert.Len(t, s.log.take(), 1, "what was held back is made up for when it is released")
		})
	}
}

func TestANewBundleDoesNotWaitForAQuarantinedCluster(t *testing.T) {
	quarantined := someCluster()
	quarantined.Spec.Quarantined = true
	s := newStage(t)
	s.has(t, quarantined, toAlice())
	s.tally.expect(keyOf(toAlice()), map[string]key{home: {Namespace: "ws", Name: "alice"}}, s.clock.Now())
	s.pass(t, quarantined)
	assert.Equal(t, []string{"bring Bundle app in 1s"}, s.log.take())
}
