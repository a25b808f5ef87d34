package costs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	healthyNeighbours = 5
	silentNeighbours  = 40

	// aCall is a little less than the duration of a call to a silent member: an import that waited for one takes longer.
	aCall = 14 * time.Second
)

// A member that accepts connections and never answers occupies a call until it times out.
func TestSilentMembersDoNotDelayOthers(t *testing.T) {
	sample.Long(t)
	hub, member := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	hub.Hub(t)
	importHealthy(t, hub, member, 1) // opens the connections
	alone := importHealthy(t, hub, member, healthyNeighbours)

	silent := hub.Namespace(t)
	hub.WriteSecret(t, silent, "silent", map[string][]byte{
		registration.KubeconfigValue: testenv.At(t, member.Kubeconfig(), testenv.SilentServer(t)),
	})
	for i := range silentNeighbours {
		createCluster(t, hub, silent, fmt.Sprintf("silent-%d", i), "silent", fmt.Sprintf("agent-%d", i))
	}
	limit := 3*alone + aCall
	fresh := importWithin(t, limit, hub, member)
	for i := range silentNeighbours {
		hub.ClusterCondition(t, silent, fmt.Sprintf("silent-%d", i), fleet.ConditionImported, "False Unreachable")
	}
	retried := importWithin(t, limit, hub, member)

	t.Logf("%d healthy imports: %s alone, %s beside %d silent members, %s while those are retried",
		healthyNeighbours, alone, fresh, silentNeighbours, retried)
	requireDeletedAtOnce(t, hub, silent)
}

// importWithin imports healthy Clusters until an import took less than limit. A busy machine may take longer once or twice. A hub that waits
// for silent members takes longer each time, because their calls do not end in between.
func importWithin(t *testing.T, limit time.Duration, hub, member *testenv.Cluster) (took time.Duration) {
	t.Helper()
	const attempts = 3
	for range attempts {
		if took = importHealthy(t, hub, member, healthyNeighbours); took < limit {
			return took
		}
	}
	require.Less(t, took, limit)
	return took
}

// importHealthy returns the time until all of the Clusters are imported.
func importHealthy(t *testing.T, hub, member *testenv.Cluster, n int) time.Duration {
	t.Helper()
	ns := hub.Namespace(t)
	hub.WriteSecret(t, ns, "member", map[string][]byte{registration.KubeconfigValue: member.Kubeconfig()})
	agents := make([]string, n)
	for i := range agents {
		agents[i] = member.Namespace(t)
	}
	began := time.Now()
	for i, agentNS := range agents {
		createCluster(t, hub, ns, fmt.Sprintf("healthy-%d", i), "member", agentNS)
	}
	testenv.Eventually(t, func() (bool, string) { return imported(t, hub, ns, n) })
	return time.Since(began).Round(10 * time.Millisecond)
}

func imported(t *testing.T, hub *testenv.Cluster, ns string, want int) (bool, string) {
	list := testenv.List(t, hub.Fleet.Clusters(ns).List, metav1.ListOptions{})
	done := 0
	for _, c := range list.Items {
		if strings.HasPrefix(testenv.Condition(c.Status.Conditions, fleet.ConditionImported), "True") {
			done++
		}
	}
	return done == want, fmt.Sprintf("%d of %d are imported", done, want)
}

func createCluster(t *testing.T, hub *testenv.Cluster, ns, name, secret, agentNS string) {
	t.Helper()
	testenv.Create(t, hub.Fleet.Clusters(ns).Create, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.ClusterSpec{KubeConfigSecret: secret, AgentNamespace: agentNS},
	})
}

// removedNeighbours are not more than the hub removes at the same time in a workspace: the removals of more take another 15 seconds.
const removedNeighbours = 30

// requireDeletedAtOnce deletes Clusters while the hub is calling their members.
func requireDeletedAtOnce(t *testing.T, hub *testenv.Cluster, ns string) {
	t.Helper()
	began := time.Now()
	clusters := hub.Fleet.Clusters(ns)
	require.NoError(t, clusters.Delete(t.Context(), "silent-0", metav1.DeleteOptions{}))
	testenv.RequireGone(t, clusters.Get, "Cluster", "silent-0")
	t.Logf("a Cluster whose member never answers was deleted in %s", time.Since(began).Round(time.Millisecond))
	for i := range removedNeighbours {
		require.NoError(t, clusters.Delete(t.Context(), fmt.Sprintf("silent-%d", i+1), metav1.DeleteOptions{}))
	}
	testenv.Eventually(t, func() (bool, string) {
		list := testenv.List(t, clusters.List, metav1.ListOptions{})
		left := len(list.Items) - (silentNeighbours - 1 - removedNeighbours)
		return left == 0, fmt.Sprintf("%d Clusters are still there", left)
	})
}
