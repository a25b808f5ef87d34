package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// witness is a step that has heard two agents, or one.
type witness struct {
	counted
	clones bool
}

func (w *witness) HasClones(*fleet.Cluster) bool { return w.clones }

func TestRegisteredTellsWhoIsCutOffAndWhoIsThereTwice(t *testing.T) {
	for _, row := range []struct {
		name                string
		quarantined, clones bool
		reason              string
		says                []string
	}{
		{"neither", false, false, fleet.ReasonRegistered, nil},
		{"cut off", true, false, fleet.ReasonQuarantined, []string{"`muster -n ns release c`", "spec.quarantined: false"}},
		{"there twice", false, true, fleet.ReasonCloneDetected, []string{"two agents", "Secret fleet-agent on the copy", "`muster -n ns revoke c`"}},
		{"both", true, true, fleet.ReasonQuarantined, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
			c.Spec.ClientID, c.Spec.Quarantined, c.Status.Agent.LastSeen = "id", row.quarantined, metav1.NewTime(noon)
			step := registeredStep{&handler{Context: atNoon(), requests: requests{}, steps: []Step{&counted{}, &witness{clones: row.clones}}}}
			out := step.Reconcile(t.Context(), c)
			assert.Equal(t, row.reason, out.Reason)
			assert.Equal(t, row.reason != fleet.ReasonRegistered, out.IsStalled(), "so it is an event as well")
			for _, part := range row.says {
				assert.Contains(t, out.Message, part)
			}
		})
	}
}

func TestAQuarantinedAgentIsNotAskedToLeave(t *testing.T) {
	why := unasked(&fleet.Cluster{Spec: fleet.ClusterSpec{Quarantined: true}})
	assert.Equal(t, fleet.ReasonQuarantined, why.Reason)
	assert.Contains(t, why.Message, "could not be asked to leave")
}
