package clusterimport

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
)

// hostileAnswers are answers of less than 4 MiB that take a multiple of it in memory when they are decoded.
var hostileAnswers = map[string]struct{ contentType, body string }{
	"a list of 10^5 items":           {"application/json", `{"kind":"List","apiVersion":"v1","items":[` + strings.Repeat(`{"metadata":{"name":"x"}},`, 100_000) + `{}]}`},
	"a million empty lists":          {"application/json", `{"kind":"Secret","apiVersion":"v1","x":[` + strings.Repeat("[],", 1_000_000) + `[]]}`},
	"a million empty objects":        {"application/json", `{"kind":"Secret","apiVersion":"v1","metadata":{"ownerReferences":[` + strings.Repeat("{},", 1_000_000) + `{}]}}`},
	"deep lists":                     {"application/json", strings.Repeat("[", 1_000_000)},
	"deep objects":                   {"application/json", strings.Repeat(`{"a":`, 500_000)},
	"a status with a million causes": {"application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"details":{"causes":[` + strings.Repeat("{},", 1_000_000) + `{}]}}`},
	"protobuf":                       {"application/vnd.kubernetes.protobuf", "k8s\x00" + strings.Repeat("\x12\x00", 1_000_000)},
}

// allocated is how many bytes do allocates, its garbage included.
func allocated(do func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// The member answers one kind of request in a hostile way, and the others as an API server.
func TestHostileAnswers(t *testing.T) {
	const limit = 32 << 20 // a call, with the work of the server
	imported := wholePlan(t)
	for name, answer := range hostileAnswers {
		hostile := func(path string) func(int, http.ResponseWriter, *http.Request) bool {
			return func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, path) {
					return false
				}
				w.Header().Set("Content-Type", answer.contentType)
				if strings.Contains(answer.body, `"code":500`) {
					w.WriteHeader(http.StatusInternalServerError)
				}
				_, _ = w.Write([]byte(answer.body))
				return true
			}
		}
		for path, call := range map[string]func(*testing.T, *fakeMember) *failure{
			"/kube-system":             func(t *testing.T, m *fakeMember) *failure { t.Helper(); return imported.run(t, m) },
			"/" + system:               func(t *testing.T, m *fakeMember) *failure { t.Helper(); return imported.run(t, m) },
			"/deployments/fleet-agent": func(t *testing.T, m *fakeMember) *failure { t.Helper(); return imported.run(t, m) },
			"/secrets/fleet-agent": func(t *testing.T, m *fakeMember) *failure {
				t.Helper()
				return newWorkloads(m).uninstall(t, deletedCluster())
			},
			"/pods": func(t *testing.T, m *fakeMember) *failure {
				t.Helper()
				return newWorkloads(m).uninstall(t, deletedCluster())
			},
		} {
			t.Run(name+" to "+path, func(t *testing.T) {
				m := newFakeMember(t)
				m.fault = hostile(path)
				var failed *failure
				assert.Less(t, allocated(func() { failed = call(t, m) }), limit)
				require.NotNil(t, failed)
				assert.Equal(t, fleet.ReasonMemberError, failed.reason, failed.message)
				assert.Less(t, len(failed.message), 400)
			})
		}
	}
}

// All calls that a tenant may have at the same time read large answers of hostile members, and wait for each other's turns. The answer is
// small for a large one, so that the last call does not wait for longer than a request may take.
func TestHostileAnswersToAllCallsOfAWorkspace(t *testing.T) {
	const calls = firstPerWorkspace + retriesPerWorkspace
	answer := `{"kind":"List","apiVersion":"v1","items":[` + strings.Repeat(`{"metadata":{"name":"x"}},`, smallLimits.Values) + `{}]}`
	member := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	})
	large := semaphore.NewWeighted(largeResponses)
	var running sync.WaitGroup
	var locks memberCalls
	for range calls {
		parsed, err := parseKubeconfig(kubeconfigSecret(with(t, to(member))))
		require.NoError(t, err)
		m, err := newMemberClient(parsed, config.TLSModeStrict, loopback, large)
		require.NoError(t, err)
		running.Go(func() {
			failed := locks.onMember(t.Context(), m, "ws", locks.members.shared, nil)
			assert.Equal(t, fleet.ReasonMemberError, failed.reason, failed.message)
		})
	}
	running.Wait()
	assert.True(t, large.TryAcquire(largeResponses), "every call has given its turn back")
}

// Without a limit, a member could send 4 MiB in each response before the hub reads any of it.
func TestHostileAnswersThatAreNotRead(t *testing.T) {
	const chunk = 4 << 10
	sent, begun := make(chan int, 1), make(chan struct{})
	member := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/endless" {
			return
		}
		total := 0
		for range 8 << 20 / chunk {
			if _, err := w.Write(make([]byte, chunk)); err != nil {
				break
			}
			if total += chunk; total == streamBuffer/2 {
				close(begun)
			}
		}
		sent <- total
	}))
	member.EnableHTTP2 = true
	member.StartTLS()
	t.Cleanup(member.Close)
	parsed, err := parseKubeconfig(kubeconfigSecret(with(t, to(member))))
	require.NoError(t, err)
	m, err := newMemberClient(parsed, config.TLSModeStrict, loopback, semaphore.NewWeighted(largeResponses))
	require.NoError(t, err)
	defer m.close()

	client := http.Client{Transport: m.transport}
	response, err := client.Get(member.URL + "/endless")
	require.NoError(t, err)
	require.Equal(t, 2, response.ProtoMajor)
	<-begun
	for range 100 { // the server has the time of these requests to send more on the same connection
		other, err := client.Get(member.URL)
		require.NoError(t, err)
		require.NoError(t, other.Body.Close())
	}
	require.NoError(t, response.Body.Close())
	assert.LessOrEqual(t, <-sent, streamBuffer+2*chunk)
}
