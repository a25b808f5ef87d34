package shard

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func request(namespace, name, clientID string) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: fleet.ClusterRegistrationSpec{ClientID: clientID},
	}
}

func cluster(namespace, name, managed string) *fleet.Cluster {
	c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if managed != "" {
		c.Labels = map[string]string{fleet.ManagementClusterLabel: managed}
	}
	return c
}

// Two processes of one release that were built apart must agree. Another mapping needs another scheme.
func TestTheShardOfAnObjectNeverChanges(t *testing.T) {
	assert.Equal(t, "16-fnv1a", scheme)
	for name, test := range map[string]struct{ got, want Shard }{
		"an object":                   {Of("fleet-default", "edge-1"), 4},
		"another":                     {Of("fleet-default", "edge-2"), 15},
		"one in no namespace":         {Of("", "s-0123"), 11},
		"a request":                   {OfRequest(request("fleet-default", "request-x", "edge-1")), 14},
		"a Cluster":                   {OfCluster(cluster("fleet-default", "edge-1", "")), 4},
		"a management server's":       {OfCluster(cluster("fleet-default", "c-m-abc", "c-m-abc")), 11},
		"the work that there is once": {Single("orphans"), 13},
	} {
		assert.Equal(t, test.want, test.got, name)
	}
}

func TestWhatBelongsTogetherIsOfOneShard(t *testing.T) {
	for n := range 100 {
		id := fmt.Sprint("client-", n)
		assert.Equal(t, OfRequest(request("ns", "a", id)), OfRequest(request("ns", "b", id)), "requests of one identity")
		assert.Equal(t, OfCluster(cluster("ns", "a", id)), OfCluster(cluster("other", "b", id)), "Clusters of one cluster")
		c := cluster("ns", id, "")
		before := OfCluster(c)
		c.Spec.ClientID, c.Status.Namespace = "x", "y"
		assert.Equal(t, before, OfCluster(c), "a Cluster that gets its identity")
	}
}

// The most that one of four replicas may have of ten thousand is a tenth more than its share.
func TestShardsAreOfTheSameSize(t *testing.T) {
	const objects = 10000
	for name, of := range map[string]func(n int) Shard{
		"numbered":   func(n int) Shard { return Of("fleet-default", fmt.Sprint("cluster-", n)) },
		"identities": func(n int) Shard { return OfRequest(request("fleet-default", "r", fmt.Sprintf("%08x", n*2654435761))) },
		"namespaces": func(n int) Shard { return Of(fmt.Sprint("ws-", n), "agent") },
	} {
		var counts [Count]int
		for n := range objects {
			counts[of(n)]++
		}
		for s, count := range counts {
			assert.InDelta(t, objects/Count, count, objects/Count/5, "%s: shard %d", name, s)
		}
		for first := 0; first < Count; first += 4 {
			quarter := counts[first] + counts[first+1] + counts[first+2] + counts[first+3]
			assert.InDelta(t, objects/4, quarter, objects/4/10, "%s: shards from %d", name, first)
		}
	}
}
