// Package backlog counts the registrations that have led to no connected agent yet, and limits their number: requests that wait, and requests
// that are granted, or about to be, for Clusters whose agent has never connected. The thief of a registration token could otherwise fill the
// hub with them. It counts requests, of which one Cluster may have several.
//
// It counts in the caches, at most once per second and workspace, and only objects of these two phases, so that a registration costs the
// same with any number of connected clusters. It adds what was admitted and is not in the caches yet.
package backlog

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Phase is the phase of a registration that has led to no connected agent yet.
type Phase int

const (
	// Waiting requests need an approval, or wait until other Clusters connect.
	Waiting Phase = iota
	// Unconnected requests are granted, or about to be, for a Cluster whose agent has never connected.
	Unconnected
	phases
)

// PhaseLimit is the maximum number of registrations of a phase.
type PhaseLimit struct {
	PerToken, PerNamespace int
}

// LimitOf returns the limit of a phase in the configuration.
func LimitOf(phase Phase, hub config.Hub) PhaseLimit {
	limits := hub.Registration.Limits.WithDefaults()
	if phase == Waiting {
		return PhaseLimit{PerToken: limits.WaitingPerToken, PerNamespace: limits.WaitingPerNamespace}
	}
	return PhaseLimit{PerToken: limits.UnconnectedPerToken, PerNamespace: limits.UnconnectedPerNamespace}
}

// Counter counts the backlog of each workspace.
type Counter struct {
	requests fleetcontrollers.ClusterRegistrationCache
	clusters fleetcontrollers.ClusterCache
	clock    clock.PassiveClock
	policies func() registration.OriginPolicies

	mu     sync.Mutex
	counts map[string]*currentCount // by namespace
}

// currentCount is the last count of a namespace. Each has a lock of its own: the others must not wait while it is counted.
type currentCount struct {
	used time.Time // guarded by the Counter

	mu   sync.Mutex
	last *namespaceCount // nil until it is counted
}

const (
	// countEvery is the time for which a count is used.
	countEvery = time.Second
	// forgetAfter is the time after which the caches show all requests that were admitted, so that an old count is of no use.
	forgetAfter = 10 * time.Minute
)

type namespaceCount struct {
	policies registration.OriginPolicies
	at       time.Time
	counted  [phases]map[types.UID]bool
	of       [phases]map[string]int               // by the keys of the requests; wholeNamespace counts all
	admitted [phases][]*fleet.ClusterRegistration // counted requests that the caches did not show
}

const (
	wholeNamespace = ""             // a key that every request has
	unattributed   = "unattributed" // the key of requests without a known token or creator
)

// The indexes contain only what is counted, by namespace.
const (
	waitingRequests     = "muster.fleet.cattle.io/waiting-requests"
	unconnectedClusters = "muster.fleet.cattle.io/unconnected-clusters"
)

// New returns a Counter that reads these caches. It is called once, before the controllers start. policies returns what the admission
// policies prove at the time of the call.
func New(
	requests fleetcontrollers.ClusterRegistrationCache, clusters fleetcontrollers.ClusterCache, clock clock.PassiveClock,
	policies func() registration.OriginPolicies,
) *Counter {
	requests.AddIndexer(waitingRequests, func(r *fleet.ClusterRegistration) ([]string, error) {
		if !isWaiting(r) {
			return nil, nil
		}
		return []string{r.Namespace}, nil
	})
	clusters.AddIndexer(unconnectedClusters, func(c *fleet.Cluster) ([]string, error) {
		if !IsUnconnected(c) {
			return nil, nil
		}
		return []string{c.Namespace}, nil
	})
	return &Counter{requests: requests, clusters: clusters, clock: clock, policies: policies, counts: map[string]*currentCount{}}
}

// IsUnconnected reports whether no agent has ever connected for a Cluster. Clusters that the hub imports do not count: an import clears
// what their agents have reported, and only people create them.
func IsUnconnected(c *fleet.Cluster) bool {
	return c.Status.Agent.LastSeen.IsZero() && c.Spec.KubeConfigSecret == ""
}

// Admit reserves a place in a phase for a request, or returns false if the limit is reached. A request that is counted already keeps its
// place.
func (c *Counter) Admit(phase Phase, request *fleet.ClusterRegistration, limit PhaseLimit) (bool, error) {
	current := c.current(request.Namespace)
	current.mu.Lock()
	defer current.mu.Unlock()
	now, err := c.count(request.Namespace, current)
	switch {
	case err != nil:
		return false, err
	case now.counted[phase][request.UID]:
		return true, nil
	}
	for _, key := range keysOf(request, now.policies) {
		if now.reaches(phase, key, limit) {
			return false, nil
		}
	}
	now.admit(phase, request)
	return true, nil
}

// Reached reports whether the requests of a token, or of its namespace, have reached the limit.
func (c *Counter) Reached(phase Phase, token *fleet.ClusterRegistrationToken, limit PhaseLimit) (ofToken, ofNamespace bool, err error) {
	current := c.current(token.Namespace)
	current.mu.Lock()
	defer current.mu.Unlock()
	now, err := c.count(token.Namespace, current)
	if err != nil {
		return false, false, err
	}
	account := registration.AccountUser(token.Namespace, registration.TokenServiceAccount(token.Name, string(token.UID)))
	ofToken = now.reaches(phase, "creator "+account, limit) || now.reaches(phase, "token "+registration.LabelValue(token.Name), limit)
	return ofToken, now.reaches(phase, wholeNamespace, limit), nil
}

// current returns the last count of a namespace, which the caller has to lock.
func (c *Counter) current(namespace string) *currentCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	current, known := c.counts[namespace]
	if !known {
		for other, count := range c.counts { // a namespace may no longer exist
			if c.clock.Since(count.used) > forgetAfter {
				delete(c.counts, other)
			}
		}
		current = &currentCount{}
		c.counts[namespace] = current
	}
	current.used = c.clock.Now()
	return current
}

// count returns the count of a namespace, which is at most countEvery old. The caller has locked current.
func (c *Counter) count(namespace string, current *currentCount) (*namespaceCount, error) {
	last := current.last
	if last != nil && c.clock.Since(last.at) < countEvery {
		return last, nil
	}
	now := &namespaceCount{policies: c.policies(), at: c.clock.Now()}
	for phase := range phases {
		now.counted[phase], now.of[phase] = map[types.UID]bool{}, map[string]int{}
	}
	waiting, err := c.requests.GetByIndex(waitingRequests, namespace)
	if err != nil {
		return nil, err
	}
	for _, r := range waiting {
		now.add(Waiting, r)
	}
	unconnected, err := c.clusters.GetByIndex(unconnectedClusters, namespace)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{} // by clientID, which a user may give to any number of Clusters
	for _, cluster := range unconnected {
		if found[cluster.Spec.ClientID] {
			continue
		}
		found[cluster.Spec.ClientID] = true
		requests, err := index.RequestsByClientID.Find(c.requests, index.Key(namespace, cluster.Spec.ClientID))
		if err != nil {
			return nil, err
		}
		for _, r := range requests {
			if r.DeletionTimestamp == nil && !isWaiting(r) && !isRefused(r) {
				now.add(Unconnected, r)
			}
		}
	}
	for phase := range phases {
		if last == nil {
			break
		}
		for _, r := range last.admitted[phase] {
			latest, err := c.requests.Get(namespace, r.Name)
			isOpen := err == nil && latest.UID == r.UID && !latest.Status.Granted && !isWaiting(latest) && !isRefused(latest)
			if isOpen && !now.counted[phase][r.UID] {
				now.admit(phase, r)
			}
		}
	}
	current.last = now
	return now, nil
}

func isRefused(r *fleet.ClusterRegistration) bool {
	_, refused := registration.RefusalOf(r)
	return refused
}

func isWaiting(r *fleet.ClusterRegistration) bool {
	granted := fleetstatus.Condition(r.Status.Conditions, fleet.ConditionGranted)
	return granted.Status == corev1.ConditionUnknown &&
		(granted.Reason == fleet.ReasonWaitingForApproval || granted.Reason == fleet.ReasonTooManyUnconnected)
}

func (c *namespaceCount) admit(phase Phase, request *fleet.ClusterRegistration) {
	c.add(phase, request)
	c.admitted[phase] = append(c.admitted[phase], request)
}

func (c *namespaceCount) add(phase Phase, request *fleet.ClusterRegistration) {
	c.counted[phase][request.UID] = true
	for _, key := range keysOf(request, c.policies) {
		c.of[phase][key]++
	}
}

// keysOf returns the keys under which a request is counted: the whole namespace, and the creator or the token that the policies prove. Users may
// write both into a request that no policy has checked, so all such requests share the limit of one token. On a hub without policies nothing is
// proved about any request: there the token that a request names counts, because with one limit for all requests one user could stop every
// registration.
func keysOf(r *fleet.ClusterRegistration, policies registration.OriginPolicies) []string {
	creator, token := registration.CreatorOf(r, policies.Hub), r.Labels[fleet.RegistrationTokenLabel]
	switch {
	case !policies.InForce:
	case !registration.OriginOf(r, policies).Proved():
		creator, token = "", ""
	case policies.NotRecorded == "" && !registration.IsForClusternet(r, policies.Hub):
		token = "" // the API server records the creator, and does not check the token; the hub names that of a Clusternet agent
	}
	keys := []string{wholeNamespace}
	if creator != "" {
		keys = append(keys, "creator "+creator)
	}
	if token != "" {
		keys = append(keys, "token "+token)
	}
	if len(keys) == 1 {
		keys = append(keys, unattributed)
	}
	return keys
}

func (c *namespaceCount) reaches(phase Phase, key string, limit PhaseLimit) bool {
	if key == wholeNamespace {
		return c.of[phase][key] >= limit.PerNamespace
	}
	return c.of[phase][key] >= limit.PerToken
}
