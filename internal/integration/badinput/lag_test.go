package badinput

import (
	"strings"
	"testing"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Each kind has a watch of its own, so the hub may see that a token is ready before it sees the Secret of the token.
func TestImportWhileTheCacheOfSecretsLags(t *testing.T) {
	hub, member := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	wire, lag := &testenv.Recorder{}, testenv.LagOf("/api/v1/secrets", fleet.ManagedLabel)
	wire.Inject(lag.Harm)
	hub.Hub(t, wire.Wrap)
	s := newScene(t, hub, member)
	s.cluster()
	hub.ClusterCondition(t, s.ns, object, fleet.ConditionImported, "Unknown WaitingForKubeconfig") // the next wait is reported at once
	lag.Begin()
	s.goodSecret()
	testenv.EventuallyThere(t, hub.Kubernetes.CoreV1().Secrets(s.ns).Get, "import-token-"+object)
	hub.ClusterCondition(t, s.ns, object, fleet.ConditionImported, "Unknown Importing")
	lag.End()
	testenv.Eventually(t, func() (bool, string) {
		got := hub.ConditionOf(testenv.KindCluster, s.ns, object, fleet.ConditionImported)
		return strings.HasPrefix(got, "True"), got
	})
}
