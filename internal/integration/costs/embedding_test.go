package costs

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A server that embeds the hub continues after the hub has stopped: goroutines that still ran would accumulate.
func TestStopDuringCalls(t *testing.T) {
	sample.Long(t)
	hub, member := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	ns, silent := hub.Namespace(t), testenv.SilentServer(t)
	before := goleak.IgnoreCurrent()

	running := hub.Hub(t)
	const calls = 10
	for i := range calls {
		createCluster(t, hub, ns, fmt.Sprintf("silent-%d", i), "silent", fmt.Sprintf("agent-%d", i))
	}
	imported := func(condition string) {
		for i := range calls {
			hub.ClusterCondition(t, ns, fmt.Sprintf("silent-%d", i), fleet.ConditionImported, condition)
		}
	}
	imported("Unknown WaitingForKubeconfig") // after the first status, the hub writes the next reason of a wait at once
	hub.WriteSecret(t, ns, "silent", map[string][]byte{registration.KubeconfigValue: testenv.At(t, member.Kubeconfig(), silent)})
	imported("Unknown Importing")
	began := time.Now()
	running.Stop(t)
	took := time.Since(began)
	t.Logf("stopped in %s", took.Round(time.Millisecond))
	require.Less(t, took, aCall, "it waited for members that never answer")
	testenv.Eventually(t, func() (bool, string) {
		err := goleak.Find(before)
		return err == nil, fmt.Sprint(err)
	})
	hub.DropClusters(t, ns)
}
