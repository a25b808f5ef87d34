package identities

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A request waits, is denied, and is approved later, with a fault at any write of the hub. In the end the agent has read each answer, and
// the approval is as the person wrote it.
func TestAnswersUnderFaults(t *testing.T) {
	sample.Long(t)
	testenv.Sweep{Least: 12}.Run(t, func(t *testing.T, hub *testenv.Cluster) func(int, func()) {
		return func(_ int, strike func()) {
			values := hub.Token(t, hub.Namespace(t), "manual", fleet.ClusterRegistrationTokenSpec{Approval: fleet.ApprovalManual})
			hub.WaitCondition(t, testenv.KindToken, values.Workspace, "manual", fleet.ConditionReady, "True")
			strike()
			request := ask(t, hub, values, "edge", "r")
			says(t, hub, request, "Unknown WaitingForApproval")
			decide(t, hub, request, fleet.DecisionDenied, "no")
			says(t, hub, request, "False Denied")
			refusal := answer(t, hub, values, request, fleet.ReasonDenied)
			require.Equal(t, "denied by a person: no", string(refusal.Data[registration.RefusalMessage]))
			decide(t, hub, request, fleet.DecisionApproved, "yes")
			says(t, hub, request, "True Granted")
			answer(t, hub, values, request, "")
			latest := testenv.RequireThere(t, hub.Fleet.ClusterRegistrations(request.Namespace).Get, request.Name)
			require.Equal(t, &fleet.RegistrationApproval{Decision: fleet.DecisionApproved, Message: "yes"}, latest.Status.Approval)
			require.Equal(t, registration.ClusterName("edge"), latest.Status.ClusterName)
		}
	})
}

// Three agents register with a token for two uses, with a fault at any write of the hub: two are granted, and two uses are counted.
func TestUsesUnderFaults(t *testing.T) {
	sample.Long(t)
	testenv.Sweep{Least: 15}.Run(t, func(t *testing.T, hub *testenv.Cluster) func(int, func()) {
		return func(_ int, strike func()) {
			namespace := hub.Namespace(t)
			values := hub.Token(t, namespace, "twice", fleet.ClusterRegistrationTokenSpec{UsageLimit: ptr.To(int32(2))})
			hub.WaitCondition(t, testenv.KindToken, namespace, "twice", fleet.ConditionReady, "True")
			strike()
			reasons, clusters := decided(t, hub, storm(t, hub, values, 3))
			require.Equal(t, map[string]int{"Granted:": 2, "TokenUsedUp:": 1}, reasons)
			token := tokenOf(t, hub, values)
			require.EqualValues(t, 2, token.Status.Uses)
			require.Contains(t, clusters, token.Status.LastCluster)
		}
	})
}
