package attacks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// malformedHeartbeats are values of status.agent that the schema of a Cluster accepts, or once accepted, and that Go cannot decode.
var malformedHeartbeats = []string{
	`{"lastSeen":"2026-01-01t00:00:00z"}`,
	`{"lastSeen":"2026-01-01T00:00:00+99:99"}`,
	`{"lastSeen":"9999-12-31T23:59:59x9Z"}`,
	`{"credentialExpires":"2026-02-31t24:00:00z"}`,
	`{"credentialExpires":"2026-01-01T00:00:00-99:00"}`,
	`{"checkinInterval":"often"}`,
	`{"checkinInterval":"9999999999999h"}`,
	`{"clockSkew":"none"}`,
	`{"nodes":{"count":9223372036854775808}}`,
	`{"nodes":{"count":1e300,"ready":-1e300}}`,
	`{"capacity":{"cpu":"1e1.5"}}`,
	`{"capacity":{"cpu":"1e99999999999"}}`,
	`{"allocatable":{"cpu":9223372036854775808}}`,
}

// malformedReports are such values of the status of a BundleDeployment.
var malformedReports = []string{
	`{"resources":[{"createdAt":"2026-01-01t00:00:00z"}]}`,
	`{"resourceCounts":{"ready":9223372036854775808}}`,
	`{"syncGeneration":9223372036854775808}`,
	`{"downstreamResourcesGeneration":1e300}`,
}

// If the hub could not decode one object that an agent wrote, it could not list the objects of any agent.
func TestMalformedStatus(t *testing.T) {
	sample.Long(t)
	s := testenv.NewStage(t)
	hub, values := s.Hub, s.Token(t, "shared")
	v, mine := newVictim(t, s, values, "victim"), newVictim(t, s, values, "mine")
	testenv.Create(t, hub.Fleet.BundleDeployments(mine.ClusterNamespace()).Create, &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Name: "own"}})
	thief := hub.ClientFor(t, mine.Bearer())

	// Use the REST client: a typed client could not decode the answer.
	accepted := 0
	write := func(resource, namespace, name, patch string) {
		err := thief.Fleet.RESTClient().Patch(types.MergePatchType).Namespace(namespace).Resource(resource).Name(name).SubResource("status").
			Body([]byte(patch)).Do(t.Context()).Error()
		if err == nil {
			accepted++
			return
		}
		require.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), "%s: %v", patch, err)
	}
	for _, agent := range malformedHeartbeats {
		write("clusters", s.Namespace, mine.cluster(), `{"status":{"agent":`+agent+`}}`)
	}
	for _, status := range malformedReports {
		write("bundledeployments", mine.ClusterNamespace(), "own", `{"status":`+status+`}`)
	}
	require.Positive(t, accepted, "the API server accepted none of them")

	s.AwaitWork(t, "while-it-runs")
	s.Stop(t)
	s.Running = hub.Hub(t)
	s.AwaitWork(t, "after-a-start")
	s.RequireHeartbeat(t, v.Registered, time.Now())
	hub.ClusterCondition(t, s.Namespace, v.cluster(), fleet.ConditionConnected, "True")
}
