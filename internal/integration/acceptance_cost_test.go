package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers"
)

// recorder notes every request a hub sends to its API server.
type recorder struct {
	mu   sync.Mutex
	sent []sent
	last time.Time
}

// sent is one request; a watch is noted when it begins.
type sent struct {
	method, path string
	watch        bool
	code         int
}

func (s sent) String() string { return fmt.Sprintf("%s %s -> %d", s.method, s.path, s.code) }

func (s sent) isWrite() bool { return s.method != http.MethodGet }

func (r *recorder) wrap(o *controllers.Options) {
	cfg := rest.CopyConfig(o.RESTConfig)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return recording{next, r} })
	o.RESTConfig = cfg
}

type recording struct {
	http.RoundTripper
	recorder *recorder
}

func (r recording) RoundTrip(request *http.Request) (*http.Response, error) {
	s := sent{method: request.Method, path: request.URL.Path, watch: request.URL.Query().Get("watch") != ""}
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil {
		s.code = response.StatusCode
	}
	r.recorder.add(s)
	return response, err
}

func (r *recorder) add(s sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.watch {
		return
	}
	r.sent = append(r.sent, s)
	r.last = time.Now()
}

// settle waits until the hub has been silent for a while, and returns and forgets what it sent until then. The while is
// longer than any delay after which a hub looks at something again by itself.
func (r *recorder) settle(t *testing.T) []sent {
	t.Helper()
	const silence = 4 * time.Second
	testenv.Eventually(t, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return time.Since(r.last) > silence, "the hub does not come to rest"
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.sent
	r.sent = nil
	return all
}

func writesIn(all []sent) []sent {
	return slices.DeleteFunc(slices.Clone(all), func(s sent) bool { return !s.isWrite() })
}

// bill is what something cost, by kind of request.
func bill(all []sent) map[string]int {
	lines := map[string]int{}
	for _, s := range all {
		parts := strings.Split(strings.Trim(s.path, "/"), "/")
		kind := parts[len(parts)-1]
		for _, resource := range []string{
			"clusterrolebindings", "rolebindings", "roles", "token", "serviceaccounts", "secrets", "events",
			"clusterregistrationtokens", "clusterregistrations", "clusters", "namespaces",
		} {
			if slices.Contains(parts, resource) {
				kind = resource
				break
			}
		}
		if parts[len(parts)-1] == "status" {
			kind += "/status"
		}
		lines[fmt.Sprintf("%s %s %dxx", s.method, kind, s.code/100)]++
	}
	return lines
}

func totals(all []sent) (writes, reads, failures int) {
	for _, s := range all {
		switch {
		case s.isWrite():
			writes++
		default:
			reads++
		}
		if s.code >= http.StatusBadRequest {
			failures++
		}
	}
	return writes, reads, failures
}

func TestARestartOverASettledHubWritesNothing(t *testing.T) {
	hub, member := clusters(t)
	settings := hub.Reachable()
	settings["bootstrap"] = map[string]any{"namespace": "fleet-local", "agentNamespace": "cattle-fleet-local-system"}
	hub.Configure(t, settings)
	first := &recorder{}
	s := &stage{hub: hub, member: member, namespace: hub.Namespace(t), Running: hub.Hub(t, withBootstrap, first.wrap)}
	agentNamespace := member.Namespace(t)
	s.importInto(t, "m", agentNamespace)
	agents := []*testenv.Running{member.Agent(t, agentNamespace)}
	s.register(t, s.hub.Token(t, s.namespace, "forever", fleet.ClusterRegistrationTokenSpec{}), "settled", "random")
	s.hub.Token(t, s.namespace, "limited", ttl(time.Hour))
	hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionImported, "True Imported")
	agents = append(agents, hub.Agent(t, "cattle-fleet-local-system"))
	hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionRegistered, "True")
	hub.ClusterCondition(t, "fleet-local", "local", fleet.ConditionRegistered, "True")
	for _, agent := range agents { // their heartbeats are work for the hub, which is not counted here
		agent.Stop(t)
	}
	first.settle(t)
	s.Stop(t)

	again := &recorder{}
	hub.Hub(t, withBootstrap, again.wrap)
	all := again.settle(t)
	require.NotEmpty(t, all)
	assert.Empty(t, writesIn(all))
	writes, reads, _ := totals(all)
	t.Logf("a restart over a settled hub: %d writes, %d reads: %v", writes, reads, bill(all))

	marker := s.createCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "marker"}})
	s.hub.ClusterCondition(t, s.namespace, marker.Name, fleet.ConditionProcessed, "True")
	assert.NotEmpty(t, writesIn(again.settle(t)), "the recorder does see writes")
}

func TestHeartbeatsCostTheHubNothing(t *testing.T) {
	r := &recorder{}
	s := newStage(t, r.wrap)
	edge := s.register(t, s.token(t, "tok"), "beating", "random")
	s.requireHeartbeatWorks(t, edge)
	s.hub.ClusterCondition(t, s.namespace, edge.request.Status.ClusterName, fleet.ConditionRegistered, "True")
	r.settle(t)

	for range 10 {
		s.requireHeartbeatWorks(t, edge)
	}
	assert.Empty(t, r.settle(t))
}

func TestTheThirtiethRegistrationCostsWhatTheFirstDid(t *testing.T) {
	r := &recorder{}
	s := newStage(t, r.wrap)
	values := s.token(t, "tok")
	register := func(n int) { s.register(t, values, fmt.Sprintf("edge-%d", n), "random") }
	first := r.cheapest(t, register, 1, 2)
	for n := 3; n < 29; n++ {
		register(n)
	}
	thirtieth := r.cheapest(t, register, 29, 30)

	writes, reads, failures := totals(first)
	t.Logf("one agent-initiated registration: %d writes, %d reads, %d of them refused: %v", writes, reads, failures, bill(first))
	assert.Equal(t, bill(first), bill(thirtieth))
	assert.Empty(t, failed(first))
}

func TestTheTenthImportCostsWhatTheFirstDid(t *testing.T) {
	r := &recorder{}
	s := newStage(t, r.wrap)
	install := func(n int) { s.importInto(t, fmt.Sprintf("m%d", n), s.member.Namespace(t)) }
	first := r.cheapest(t, install, 1, 2)
	for n := 3; n < 9; n++ {
		install(n)
	}
	tenth := r.cheapest(t, install, 9, 10)

	writes, reads, failures := totals(first)
	t.Logf("one import, without its registration: %d writes, %d reads, %d of them refused: %v", writes, reads, failures, bill(first))
	assert.Equal(t, bill(writesIn(first)), bill(writesIn(tenth)))
	assert.Empty(t, failed(first))
	const most = 8 // each pass that comes further than the last reads the kubeconfig Secret, which no cache holds
	assert.LessOrEqual(t, reads, most)
	_, reads, _ = totals(tenth)
	assert.LessOrEqual(t, reads, most)
}

// cheapest does something a few times and returns what the hub sent for the cheapest: on a busy machine something that takes
// longer than usual costs a line in a status that says so.
func (r *recorder) cheapest(t *testing.T, do func(n int), numbers ...int) (least []sent) {
	t.Helper()
	for _, n := range numbers {
		r.settle(t)
		do(n)
		cost := r.settle(t)
		if least == nil || len(cost) < len(least) {
			least = cost
		}
	}
	return least
}

func failed(all []sent) []sent {
	return slices.DeleteFunc(slices.Clone(all), func(s sent) bool { return s.code < http.StatusBadRequest })
}

func TestAHubWhoseClockIsAheadIssuesNoTokenTwice(t *testing.T) {
	r := &recorder{}
	s := newStage(t, r.wrap, ahead(5*time.Minute))
	values := s.hub.Token(t, s.namespace, "tok", ttl(time.Hour))
	s.readyToken(t, "tok")
	r.settle(t)

	settings := s.hub.Reachable()
	settings["apiServerURL"] = "https://moved.example:6443"
	s.hub.Configure(t, settings)
	testenv.Eventually(t, func() (bool, string) {
		return s.hub.Values(t, s.namespace, "tok").APIServerURL == "https://moved.example:6443", "the values still have the old URL"
	})
	assert.Equal(t, values.Token, s.hub.Values(t, s.namespace, "tok").Token)
	// Tokens of other tests on this hub are rendered anew as well.
	own := slices.DeleteFunc(writesIn(r.settle(t)), func(w sent) bool { return !strings.Contains(w.path, s.namespace) })
	assert.Equal(t, map[string]int{"PUT secrets 2xx": 1}, bill(own))
}
