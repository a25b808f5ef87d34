package backlog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// scene is a Counter with real caches.
type scene struct {
	*Counter
	clock              *clocktesting.FakeClock
	requests, clusters cache.Indexer
	policies           registration.OriginPolicies
}

func newScene() *scene {
	s := &scene{clock: clocktesting.NewFakeClock(noon), policies: registration.OriginPolicies{InForce: true, Since: noon}}
	s.requests = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	s.clusters = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	requests := generic.NewCache[*fleet.ClusterRegistration](s.requests, schema.GroupResource{})
	index.RequestsByClientID.AddTo(requests)
	s.Counter = New(requests, generic.NewCache[*fleet.Cluster](s.clusters, schema.GroupResource{}), s.clock, func() registration.OriginPolicies { return s.policies })
	return s
}

// request is the n-th request of the ServiceAccount of a token.
func request(token string, n int) *fleet.ClusterRegistration {
	name := fmt.Sprint(token, "-", n)
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon),
			Labels:      map[string]string{fleet.RegistrationTokenLabel: token},
			Annotations: map[string]string{fleet.CreatorAnnotation: registration.AccountUser("ns", registration.TokenServiceAccount(token, "uid"))},
		},
		Spec: fleet.ClusterRegistrationSpec{ClientID: name},
	}
}

func named(token string) *fleet.ClusterRegistrationToken {
	return &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: token, UID: "uid"}}
}

func (s *scene) have(t *testing.T, r *fleet.ClusterRegistration, cluster *fleet.Cluster) {
	t.Helper()
	require.NoError(t, s.requests.Update(r))
	if cluster != nil {
		cluster.Namespace, cluster.Name, cluster.Spec.ClientID = "ns", r.Name, r.Spec.ClientID
		require.NoError(t, s.clusters.Update(cluster))
	}
}

func (s *scene) admit(t *testing.T, phase Phase, r *fleet.ClusterRegistration, limit PhaseLimit) bool {
	t.Helper()
	admitted, err := s.Admit(phase, r, limit)
	require.NoError(t, err)
	return admitted
}

func TestAdmit_whatCounts(t *testing.T) {
	connected := fleet.ClusterStatus{Agent: fleet.AgentStatus{LastSeen: metav1.NewTime(noon)}}
	granted := func(out result.Result) func(*fleet.ClusterRegistration) {
		return func(r *fleet.ClusterRegistration) {
			result.Set(&r.Status.Conditions, fleet.ConditionGranted, out, noon)
			r.Status.Granted = out.IsDone()
		}
	}
	for _, row := range []struct {
		name        string
		change      func(*fleet.ClusterRegistration)
		cluster     *fleet.Cluster
		waiting     bool
		unconnected bool
	}{
		{"a new request", func(*fleet.ClusterRegistration) {}, nil, false, false},
		{"one whose Cluster was created", func(*fleet.ClusterRegistration) {}, &fleet.Cluster{}, false, true},
		{"a granted one", granted(result.Done(fleet.ReasonGranted, "")), &fleet.Cluster{}, false, true},
		{"a granted one whose agent connects", granted(result.Done(fleet.ReasonGranted, "")), &fleet.Cluster{Status: connected}, false, false},
		{
			"a granted one of an imported Cluster", granted(result.Done(fleet.ReasonGranted, "")),
			&fleet.Cluster{Spec: fleet.ClusterSpec{KubeConfigSecret: "k"}}, false, false,
		},
		{"one that is being deleted", func(r *fleet.ClusterRegistration) { r.DeletionTimestamp = &metav1.Time{Time: noon} }, &fleet.Cluster{}, false, false},
		{"one that waits for a person", granted(result.Wait(fleet.ReasonWaitingForApproval, "")), &fleet.Cluster{}, true, false},
		{"one that waits for other agents", granted(result.Wait(fleet.ReasonTooManyUnconnected, "")), nil, true, false},
		{"one that waits for its namespace", granted(result.Wait(fleet.ReasonWaitingForCluster, "")), &fleet.Cluster{}, false, true},
		{"a refused one", granted(result.Stalled(fleet.ReasonTooManyWaiting, "")), &fleet.Cluster{}, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			for phase, counts := range map[Phase]bool{Waiting: row.waiting, Unconnected: row.unconnected} {
				s := newScene()
				r := request("tok", 1)
				row.change(r)
				s.have(t, r, row.cluster)
				assert.Equal(t, !counts, s.admit(t, phase, request("tok", 2), PhaseLimit{PerToken: 1, PerNamespace: 9}), "another request of the token")
			}
		})
	}
}

func TestAdmit(t *testing.T) {
	limit := PhaseLimit{PerToken: 3, PerNamespace: 5}
	s := newScene()
	admitted := func(token string, from, to int) (count int) {
		for n := from; n < to; n++ {
			if s.admit(t, Unconnected, request(token, n), limit) {
				count++
			}
		}
		return count
	}
	assert.Equal(t, 3, admitted("a", 0, 10), "the limit of the token")
	assert.Equal(t, 3, admitted("a", 0, 10), "what was admitted stays")
	assert.Equal(t, 2, admitted("b", 0, 10), "the limit of the namespace")
	assert.Equal(t, 3, func() (count int) {
		for n := range 10 {
			if s.admit(t, Waiting, request("a", n), limit) {
				count++
			}
		}
		return count
	}(), "each phase has its own limit")

	for n := range 3 {
		s.have(t, request("a", n), nil)
	}
	s.clock.Step(countEvery)
	assert.Zero(t, admitted("a", 10, 20), "the caches do not show the Clusters of those that were admitted")
	assert.Equal(t, 2, admitted("b", 10, 20), "the requests of others were deleted")
	s.clock.Step(countEvery)
	for n := range 2 {
		s.have(t, request("a", n), &fleet.Cluster{})
	}
	refused := request("a", 2)
	result.Set(&refused.Status.Conditions, fleet.ConditionGranted, result.Stalled(fleet.ReasonDenied, ""), noon)
	s.have(t, refused, nil)
	s.have(t, request("c", 0), &fleet.Cluster{})
	assert.Equal(t, 1, admitted("a", 5, 9), "one of three was refused")
	assert.Equal(t, 1, admitted("a", 0, 1), "one of the others is asked about")

	anonymous := request("a", 30)
	anonymous.Labels = nil
	assert.False(t, s.admit(t, Unconnected, anonymous, limit), "the creator counts if the token is not named")
	elsewhere := request("a", 31)
	elsewhere.Namespace = "other"
	assert.True(t, s.admit(t, Unconnected, elsewhere, limit))
}

// Somebody who may create requests sends many, which say that they were made with a token that he does not have.
func TestAdmit_tokenOfSomebodyElse(t *testing.T) {
	const hub = "system:serviceaccount:cattle-fleet-system:fleet-controller"
	limit := PhaseLimit{PerToken: 2, PerNamespace: 9}
	recorded := registration.OriginPolicies{InForce: true, Since: noon}
	checked := registration.OriginPolicies{InForce: true, Since: noon, NotRecorded: "this API server records no creators"}
	early := func(r *fleet.ClusterRegistration) { r.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour)) }
	unrecorded := func(r *fleet.ClusterRegistration) { r.Annotations = nil }
	for _, row := range []struct {
		name     string
		policies registration.OriginPolicies
		change   func(*fleet.ClusterRegistration)
		admitted int
		takes    bool // the places of the token
	}{
		{"created before the policies were in force", recorded, early, 2, false},
		{"created before the policies that check tokens were in force", checked, func(r *fleet.ClusterRegistration) { early(r); unrecorded(r) }, 2, false},
		{"without a recorded creator", recorded, unrecorded, 2, false},
		{"with another creator", recorded, func(r *fleet.ClusterRegistration) { r.Annotations[fleet.CreatorAnnotation] = "thief" }, 2, false},
		{"without token and creator", checked, func(r *fleet.ClusterRegistration) { r.Labels, r.Annotations = nil, nil }, 2, false},
		{"on a hub without policies: nothing proves anything", registration.OriginPolicies{}, unrecorded, 2, true},
		{"without token and creator on a hub without policies", registration.OriginPolicies{}, func(r *fleet.ClusterRegistration) { r.Labels, r.Annotations = nil, nil }, 2, false},

		{"with the token", recorded, func(*fleet.ClusterRegistration) {}, 2, true},
		{"with the token, which the API server checked", checked, unrecorded, 2, true},
		{"with the token, which the API server checked, and some without the creator", checked, func(r *fleet.ClusterRegistration) {
			if strings.HasSuffix(r.Name, "0") {
				unrecorded(r)
			}
		}, 2, true},
		{"with the token, by many users of Clusternet agents", registration.OriginPolicies{InForce: true, Since: noon, Hub: hub}, func(r *fleet.ClusterRegistration) {
			r.Annotations = map[string]string{fleet.CreatorAnnotation: hub, fleet.RequesterAnnotation: "system:bootstrap:" + r.Name}
		}, 2, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, phase := range []Phase{Waiting, Unconnected} {
				s := newScene()
				s.policies = row.policies
				admitted := 0
				for n := range 100 {
					r := request("a", n)
					row.change(r)
					if s.admit(t, phase, r, limit) {
						admitted++
					}
				}
				assert.Equal(t, row.admitted, admitted, "all of them share the limit of one token")
				ofToken, _, err := s.Reached(phase, named("a"), limit)
				require.NoError(t, err)
				assert.Equal(t, row.takes, ofToken)
				next := request("a", 100)
				if row.takes {
					row.change(next)
				}
				assert.Equal(t, row.takes, !s.admit(t, phase, next, limit), "the next request with the token")
				assert.True(t, s.admit(t, phase, request("b", 0), limit), "the requests with other tokens")
			}
		})
	}
}

func TestAdmit_forgetsNamespaces(t *testing.T) {
	s := newScene()
	for i := range 100 {
		of := request("t", i)
		of.Namespace = fmt.Sprint("ns-", i)
		require.True(t, s.admit(t, Unconnected, of, PhaseLimit{PerToken: 1, PerNamespace: 1}))
		s.clock.Step(time.Minute)
	}
	assert.LessOrEqual(t, len(s.counts), 11)
}

func TestReached(t *testing.T) {
	s := newScene()
	for n := range 3 {
		s.have(t, request("a", n), &fleet.Cluster{})
	}
	for _, row := range []struct {
		token                string
		limit                PhaseLimit
		ofToken, ofNamespace bool
	}{
		{"a", PhaseLimit{PerToken: 4, PerNamespace: 4}, false, false},
		{"a", PhaseLimit{PerToken: 3, PerNamespace: 4}, true, false},
		{"a", PhaseLimit{PerToken: 3, PerNamespace: 3}, true, true},
		{"b", PhaseLimit{PerToken: 3, PerNamespace: 3}, false, true},
	} {
		ofToken, ofNamespace, err := s.Reached(Unconnected, named(row.token), row.limit)
		require.NoError(t, err)
		assert.Equal(t, row.ofToken, ofToken, row)
		assert.Equal(t, row.ofNamespace, ofNamespace, row)
	}
}

// Ten thousand requests of one token: what is admitted is bounded, and so is what the hub keeps in memory about them.
func TestAdmit_stolenToken(t *testing.T) {
	limit := PhaseLimit{PerToken: 1000, PerNamespace: 5000}
	s := newScene()
	admitted := 0
	for n := range 10_000 {
		r := request("stolen", n)
		if s.admit(t, Unconnected, r, limit) {
			admitted++
			s.have(t, r, &fleet.Cluster{})
		}
		if n%500 == 0 {
			s.clock.Step(countEvery)
		}
	}
	assert.Equal(t, 1000, admitted)
	assert.Len(t, s.counts["ns"].last.counted[Unconnected], 1000)
	assert.True(t, s.admit(t, Unconnected, request("other", 1), limit), "other tokens of the namespace still work")
}

// A user who may write Clusters gives very many of them one clientID, which several requests have. The counter is shared by all workspaces.
func TestClustersWithOneClientID(t *testing.T) {
	s := newScene()
	for n := range 1000 {
		require.NoError(t, s.clusters.Add(&fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("c-", n)}, Spec: fleet.ClusterSpec{ClientID: "same"},
		}))
	}
	first := request("tok", 1)
	for n := range 500 {
		r := request("tok", n)
		r.Spec.ClientID = "same"
		result.Set(&r.Status.Conditions, fleet.ConditionGranted, result.Stalled(fleet.ReasonClientIDAmbiguous, ""), noon)
		require.NoError(t, s.requests.Update(r))
	}
	first.Spec.ClientID, first.Status.Granted = "same", true
	require.NoError(t, s.requests.Update(first))

	lookUps := &lookUps{ClusterRegistrationCache: s.Counter.requests}
	s.Counter.requests = lookUps
	assert.True(t, s.admit(t, Unconnected, request("tok", 1000), PhaseLimit{PerToken: 2, PerNamespace: 2}), "one request of another Cluster is open")
	assert.Equal(t, 2, lookUps.n, "of the requests that wait, and of the clientID")
}

type lookUps struct {
	fleetcontrollers.ClusterRegistrationCache
	n int
}

func (l *lookUps) GetByIndex(name, key string) ([]*fleet.ClusterRegistration, error) {
	l.n++
	return l.ClusterRegistrationCache.GetByIndex(name, key)
}

// A count takes long if a user has created many Clusters.
func TestAdmit_otherNamespaces(t *testing.T) {
	s := newScene()
	slow := s.current("slow")
	slow.mu.Lock()
	defer slow.mu.Unlock()
	assert.True(t, s.admit(t, Waiting, request("tok", 1), PhaseLimit{PerToken: 1, PerNamespace: 1}))
}
