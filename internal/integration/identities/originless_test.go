package identities

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestWithoutAdmissionPolicies(t *testing.T) {
	sample.Long(t)
	s := testenv.EmptyStage(t)
	s.Running = s.Hub.Hub(t, s.Hub.WithoutAdmission(t))
	values := s.Token(t, "shared")
	own := s.Hub.Token(t, s.Namespace, "own", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"edge"}})
	s.Register(t, values, "edge", "0")
	victim := s.Register(t, own, "edge", "1") // only holders of the token of the Cluster can read the answer
	assert.Contains(t, testenv.Condition(victim.Request.Status.Conditions, fleet.ConditionOriginProved), "False PolicyMissing")

	attack := ask(t, s.Hub, values, "edge", "2")
	says(t, s.Hub, attack, "False ClientIDInUse")
	works(t, s.Hub, victim)

	s.Stop(t)
	s.Running = s.Hub.Hub(t) // with policies again
	decide(t, s.Hub, attack, fleet.DecisionDenied, "")
	says(t, s.Hub, attack, "False Denied")
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, attack.Name, fleet.ConditionOriginProved, "False OriginUnknown")
}
