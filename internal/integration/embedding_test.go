package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A server that embeds the hub goes on when the hub has stopped: whatever of it still ran would pile up.
func TestAHubThatIsStoppedInTheMiddleOfItsCallsLeavesNothingRunning(t *testing.T) {
	hub, member := clusters(t)
	hub.Configure(t, hub.Reachable())
	ns, silent := hub.Namespace(t), testenv.SilentServer(t)
	hub.KubeconfigSecret(t, ns, "silent", map[string][]byte{registration.KubeconfigValue: testenv.At(t, member.Kubeconfig(), silent)})
	before := goleak.IgnoreCurrent()

	running := hub.Hub(t)
	const calls = 10
	for i := range calls {
		createCluster(t, hub, ns, fmt.Sprintf("silent-%d", i), "silent", "")
	}
	for i := range calls {
		hub.ClusterCondition(t, ns, fmt.Sprintf("silent-%d", i), fleet.ConditionImported, "Unknown Importing")
	}
	began := time.Now()
	running.Stop(t)
	took := time.Since(began)
	t.Logf("stopped in %s", took.Round(time.Millisecond))
	require.Less(t, took, aCall, "it waited for members that never answer")
	goleak.VerifyNone(t, before)
	dropClusters(t, hub, ns)
}

// dropClusters removes Clusters while no hub runs.
func dropClusters(t *testing.T, hub *testenv.Cluster, ns string) {
	t.Helper()
	clusters := hub.Fleet.Clusters(ns)
	list, err := clusters.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, c := range list.Items {
		_, err := clusters.Patch(t.Context(), c.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		require.NoError(t, clusters.Delete(t.Context(), c.Name, metav1.DeleteOptions{}))
	}
}
