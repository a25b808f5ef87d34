package costs

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestRestartWritesNothing(t *testing.T) {
	sample.Long(t)
	s := &stage{testenv.EmptyStage(t)}
	hub, member := s.Hub, s.Member
	settings := hub.Reachable()
	settings["bootstrap"] = map[string]any{"namespace": "fleet-local", "agentNamespace": "cattle-fleet-local-system"}
	hub.Configure(t, settings)
	first := &testenv.Recorder{}
	s.Running = hub.Hub(t, testenv.WithBootstrap, first.Wrap)
	agentNamespace := member.Namespace(t)
	s.ImportInto(t, "m", agentNamespace)
	agents := []*testenv.Running{member.Agent(t, agentNamespace)}
	settled := s.Register(t, s.Hub.Token(t, s.Namespace, "forever", fleet.ClusterRegistrationTokenSpec{}), "settled", "random")
	s.RequireHeartbeat(t, settled, time.Now())
	s.Hub.Token(t, s.Namespace, "limited", testenv.TTL(time.Hour))
	hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionImported, "True Imported")
	agents = append(agents, hub.Agent(t, "cattle-fleet-local-system"))
	for name, resource := range map[string]string{"works": "{apiVersion: v1, kind: ConfigMap, metadata: {name: works}}", "fails": "no object"} {
		testenv.Create(t, hub.Fleet.Bundles(s.Namespace).Create, &fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: fleet.BundleSpec{
				BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: agentNamespace},
				Resources:               []fleet.BundleResource{{Name: "objects.yaml", Content: resource}},
				Targets:                 []fleet.BundleTarget{{ClusterName: "m"}},
			},
		})
	}
	hub.ClusterCondition(t, s.Namespace, settled.Request.Status.ClusterName, fleet.ConditionRegistered, "True")
	hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionRegistered, "True")
	hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionRegistered, "True")
	s.EventuallyCluster(t, "m", func(c *fleet.Cluster) (bool, string) {
		summary := c.Status.Summary
		return summary.Ready == 1 && summary.ErrApplied == 1, fmt.Sprintf("one Bundle must be ready, and one must have failed: %+v", summary)
	})
	for _, agent := range agents { // the requests after their heartbeats are not counted here
		agent.Stop(t)
	}
	hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionConnected, "False")
	hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionConnected, "False")
	first.Settle(t)
	s.Stop(t)

	again := &testenv.Recorder{}
	hub.Hub(t, testenv.WithBootstrap, again.Wrap)
	all := again.Settle(t)
	require.NotEmpty(t, all)
	assert.Empty(t, testenv.WritesIn(all))
	writes, reads, _ := testenv.Totals(all)
	t.Logf("a restart over a settled hub: %d writes, %d reads: %v", writes, reads, testenv.Bill(all))

	marker := s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "marker"}})
	s.Hub.ClusterCondition(t, s.Namespace, marker.Name, fleet.ConditionProcessed, "True")
	assert.NotEmpty(t, testenv.WritesIn(again.Settle(t)), "the recorder does see writes")
}

func TestCost(t *testing.T) {
	sample.Long(t)
	r := &testenv.Recorder{}
	s := &stage{testenv.NewStage(t, testenv.DefaultDelays, r.Wrap)} // with a short delay of repairs, a late cache would cause another request
	values := s.Token(t, "tok")
	r.Settle(t)

	t.Run("a registration: with the agent's Bundle it is one more", func(t *testing.T) {
		var all []testenv.Registered
		cost := usual(t, r, func(n int) {
			registered := s.Register(t, values, fmt.Sprintf("edge-%d", n), "random")
			assert.Empty(t, registered.Request.ManagedFields)
			all = append(all, registered)
		})
		writes, reads, failures := testenv.Totals(cost)
		t.Logf("one agent-initiated registration: %d writes, %d reads, %d of them refused: %v", writes, reads, failures, testenv.Bill(cost))
		assert.Equal(t, aRegistration, testenv.Bill(cost))

		for _, registered := range all { // without a heartbeat, the first status would be written during another test
			s.RequireHeartbeat(t, registered, time.Now())
		}
		r.Settle(t)
	})
	// The hub writes the first status of a Cluster with the first heartbeat of its agent, which an agent of Fleet adds to a status that the API
	// server has set.
	for name, register := range map[string]func(clientID string) *fleet.ClusterRegistration{
		"an agent of this project": func(clientID string) *fleet.ClusterRegistration {
			granted := s.RegisterRenewing(t, values, clientID, "random").Request
			s.Beat(t, granted.Status.ClusterName, fleet.AgentStatus{LastSeen: metav1.Now(), Namespace: testenv.SystemNamespace, Registration: granted.Name})
			return granted
		},
		"an agent of Fleet": func(clientID string) *fleet.ClusterRegistration {
			registered := s.Register(t, values, clientID, "random")
			s.RequireHeartbeat(t, registered, time.Now())
			return registered.Request
		},
	} {
		t.Run(name+": its first heartbeat finds a Cluster without a status of the hub", func(t *testing.T) {
			cost := usual(t, r, func(n int) {
				granted := register(fmt.Sprintf("%s-%d", strings.ReplaceAll(strings.ToLower(name), " ", "-"), n))
				s.Hub.ClusterCondition(t, s.Namespace, granted.Status.ClusterName, fleet.ConditionRegistered, "True")
			})
			t.Logf("a registration with its first heartbeat: %v", testenv.Bill(testenv.WritesIn(cost)))
			assert.Equal(t, 1, testenv.Bill(cost)["PATCH clusters/status 2xx"])
		})
	}
	t.Run("an import", func(t *testing.T) {
		cost := usual(t, r, func(n int) { s.ImportInto(t, fmt.Sprintf("m%d", n), s.Member.Namespace(t)) })
		writes, reads, failures := testenv.Totals(cost)
		t.Logf("one import, without its registration: %d writes, %d reads, %d of them refused: %v", writes, reads, failures, testenv.Bill(cost))
		assert.Empty(t, failed(cost))
		assert.LessOrEqual(t, writes, 9)
		assert.Equal(t, 1, reads, "the kubeconfig Secret, which no cache holds")
	})
	t.Run("a deletion", func(t *testing.T) { s.costOfADeletion(t, r, values) })
}

// aRegistration lists all requests of the hub for one of Fleet's agents that registers with a token.
var aRegistration = map[string]int{
	"PATCH clusterregistrationtokens/status 2xx": 1, // counts the use; in a storm, one write counts many uses
	"POST clusters 2xx":                          1,
	"POST namespaces 2xx":                        1,
	"PATCH clusterregistrations 2xx":             1, // makes the Cluster its owner
	"POST serviceaccounts 2xx":                   1,
	"POST roles 2xx":                             2, // to report, and to read the credential
	"POST rolebindings 2xx":                      3, // and for the BundleDeployments, which a shared ClusterRole lets it read
	"POST token 2xx":                             1,
	"POST secrets 2xx":                           1,
	"PATCH clusterregistrations/status 2xx":      1,
	"POST events 2xx":                            1, // about the grant
}

// usual repeats an action until the hub has sent the same writes twice in a row, and returns them: on a busy machine a slow step causes an
// additional status write.
func usual(t *testing.T, r *testenv.Recorder, do func(n int)) []testenv.Sent {
	t.Helper()
	const attempts = 8
	seen := map[string]bool{}
	for n := range attempts {
		do(n)
		cost := r.Settle(t)
		bill := fmt.Sprint(testenv.Bill(testenv.WritesIn(cost)))
		if seen[bill] {
			return cost
		}
		seen[bill] = true
	}
	require.FailNow(t, "no two of them had the same writes", "%v", slices.Sorted(maps.Keys(seen)))
	return nil
}

func failed(all []testenv.Sent) []testenv.Sent {
	return slices.DeleteFunc(slices.Clone(all), func(s testenv.Sent) bool { return s.Code < http.StatusBadRequest })
}

func TestClockOfTheHubIsAhead(t *testing.T) {
	sample.Long(t)
	r := &testenv.Recorder{}
	s := testenv.NewStage(t, r.Wrap, testenv.Ahead(5*time.Minute))
	values := s.Hub.Token(t, s.Namespace, "tok", testenv.TTL(time.Hour))
	s.ReadyToken(t, "tok")
	r.Settle(t)

	settings := s.Hub.Reachable()
	settings["apiServerURL"] = "https://moved.example:6443"
	s.Hub.Configure(t, settings)
	testenv.Eventually(t, func() (bool, string) {
		return s.Hub.Values(t, s.Namespace, "tok").APIServerURL == "https://moved.example:6443", "the values still have the old URL"
	})
	assert.Equal(t, values.Token, s.Hub.Values(t, s.Namespace, "tok").Token)
	// The values of tokens of other tests on this hub are rendered again as well.
	own := slices.DeleteFunc(testenv.WritesIn(r.Settle(t)), func(w testenv.Sent) bool { return !strings.Contains(w.Path, s.Namespace) })
	assert.Equal(t, map[string]int{"PUT secrets 2xx": 1}, testenv.Bill(own))
}
