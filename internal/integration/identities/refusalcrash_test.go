package identities

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A request waits, is denied, and is approved after all, and the hub is hit at each of its writes in turn, until there are no
// more of them: the agent reads each answer in the end, and the approval stays what the person wrote.
func TestAHubThatIsHitAtAnyWriteGivesTheAnswerAllTheSame(t *testing.T) {
	t.Parallel() // each blow has a hub of its own
	for _, blow := range []testenv.Blow{testenv.Kill, testenv.Fail, testenv.Drop} {
		t.Run(strings.Fields(string(blow))[0], func(t *testing.T) {
			t.Parallel()
			hub := testenv.OwnCluster(t, "answering")
			hub.Configure(t, hub.Reachable())
			supervised := hub.SupervisedHub(t)
			for n := 1; ; n += testenv.Stride() {
				values := hub.Token(t, hub.Namespace(t), "manual", fleet.ClusterRegistrationTokenSpec{Approval: fleet.ApprovalManual})
				hub.WaitCondition(t, testenv.KindToken, values.ClusterNamespace, "manual", fleet.ConditionReady, "True")
				supervised.Strike(blow, n)
				request := ask(t, hub, values, "edge", "r")
				says(t, hub, request, "Unknown WaitingForApproval")
				decide(t, hub, request, fleet.DecisionDenied, "no")
				says(t, hub, request, "False Denied")
				answer(t, hub, values, request, fleet.ReasonDenied)
				decide(t, hub, request, fleet.DecisionApproved, "yes")
				says(t, hub, request, "True Granted")
				answer(t, hub, values, request, "")
				latest := testenv.RequireThere(t, hub.Fleet.ClusterRegistrations(request.Namespace).Get, request.Name)
				require.Equal(t, &fleet.RegistrationApproval{Decision: fleet.DecisionApproved, Message: "yes"}, latest.Status.Approval)
				require.Equal(t, registration.ClusterName("edge"), latest.Status.ClusterName)
				if supervised.Struck() == "" {
					require.Greater(t, n, 12, "so few writes cannot be a denial and a registration")
					t.Logf("fewer than %d writes; the hub was started %d times", n, supervised.Starts())
					return
				}
			}
		})
	}
}
