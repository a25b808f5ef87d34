package clusterimport

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv/heap"
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
				assert.Less(t, heap.Allocated(func() { failed = call(t, m) }), limit)
				require.NotNil(t, failed)
				assert.Equal(t, fleet.ReasonMemberError, failed.reason, failed.message)
				assert.Less(t, len(failed.message), 400)
			})
		}
	}
}

// history answers as a member with one release, whose revision has that manifest.
func history(t *testing.T, manifest string) func(int, http.ResponseWriter, *http.Request) bool {
	t.Helper()
	text, err := json.Marshal(map[string]any{"name": "shop", "namespace": "apps", "version": 1, "info": map[string]string{"status": "deployed"}, "manifest": manifest})
	require.NoError(t, err)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err = zip.Write(text)
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	secret := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
			"name": "sh.helm.release.v1.shop.v1", "namespace": "apps", "labels": map[string]string{"owner": "helm", "name": "shop", "version": "1", "status": "deployed"},
		}, "data": map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(packed.Bytes()))},
	}
	return func(_ int, w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/secrets"):
			reply(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "SecretList", "items": []any{secret}})
		case strings.HasSuffix(r.URL.Path, "/secrets/sh.helm.release.v1.shop.v1"):
			reply(w, http.StatusOK, secret)
		case r.URL.Path == "/api":
			reply(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		case r.URL.Path == "/api/v1":
			reply(w, http.StatusOK, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: "v1"})
		case r.URL.Path == "/apis":
			reply(w, http.StatusOK, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}})
		default:
			return false
		}
		return true
	}
}

// hostileManifests are manifests of less than 8 MiB that take a multiple of it in memory when Helm parses them.
var hostileManifests = map[string]string{
	"a million empty lists":  "apiVersion: v1\nkind: X\nx: [" + strings.Repeat("[],", 1_000_000) + "[]]",
	"a million empty maps":   "apiVersion: v1\nkind: X\nx:\n" + strings.Repeat("- a:\n", 1_000_000),
	"aliases of a long text": "apiVersion: v1\nkind: X\na: &a " + strings.Repeat("x", 100_000) + "\nx: [" + strings.Repeat("*a,", 5000) + "*a]",
	"aliases across what looks like documents": "apiVersion: v1\nkind: X\na: \"\n---x: &a " + strings.Repeat("x", 100_000) + "\nx: [" +
		strings.Repeat("*a,", 5000) + "*a]\n---\ny: \"",
}

func TestHostileHistories(t *testing.T) {
	const limit = 128 << 20 // the history is unpacked and decoded
	for name, manifest := range hostileManifests {
		t.Run(name, func(t *testing.T) {
			m := newFakeMember(t)
			newWorkloads(m)
			m.fault = history(t, manifest)
			connected := m.connect(t)
			u := removal{member: connected, cluster: deletedCluster(), namespaces: []string{system}, releases: connected.openReleases}
			var failed *failure
			assert.Less(t, heap.Allocated(func() { failed = u.run(t.Context()) }), limit)
			require.NotNil(t, failed)
			assert.Equal(t, fleet.ReasonMemberError, failed.reason)
			assert.Contains(t, failed.message, "the history of a Helm release has YAML that ")
			assert.NotContains(t, failed.message, "shop", "nothing that the member has answered")
			assert.Contains(t, m.paths(), "/api/v1/namespaces/"+system+"/secrets/fleet-agent", "the removal is not complete")
			assert.True(t, connected.large.Of.TryAcquire(largeResponses), "it has given its turn back")
		})
	}
}

// client-go sends a request for each version of a group at the same time, and Helm one for each object of a kind.
func TestHostileDiscovery(t *testing.T) {
	const object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x%d}\n---\n"
	for name, row := range map[string]struct {
		versions, kinds, objects int
		refused                  bool
		requests                 int // for the kinds of the versions
	}{
		"an API server that does not aggregate": {versions: 200, kinds: 1, objects: 300, requests: 200},
		"many versions":                         {versions: discoveryLimits.GroupVersions, kinds: 1, objects: 1, refused: true},
		"many kinds":                            {versions: 20, kinds: 1000, objects: 3, refused: true, requests: 4},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeMember(t)
			newWorkloads(m)
			var manifest, versions strings.Builder
			for i := range row.objects {
				fmt.Fprintf(&manifest, object, i)
			}
			for i := range row.versions {
				fmt.Fprintf(&versions, `{"groupVersion":"a/v%d","version":"v%d"},`, i, i)
			}
			kinds := strings.Repeat(`{"name":"x","kind":"X"},`, row.kinds)
			answer := history(t, manifest.String())
			var mu sync.Mutex
			connections, requests, deleted, goroutines, before := map[string]bool{}, 0, 0, 0, runtime.NumGoroutine()
			m.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				connections[r.RemoteAddr] = true
				goroutines = max(goroutines, runtime.NumGoroutine())
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == "/api/v1":
					fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true}]}`)
				case r.URL.Path == "/apis":
					fmt.Fprintf(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"a","versions":[%s{"groupVersion":"b/v1","version":"v1"}]}]}`, versions.String())
				case strings.HasPrefix(r.URL.Path, "/apis/a/"):
					requests++
					fmt.Fprintf(w, `{"kind":"APIResourceList","groupVersion":%q,"resources":[%s{"name":"y","kind":"Y"}]}`, strings.TrimPrefix(r.URL.Path, "/apis/"), kinds)
				case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/configmaps/x"):
					fmt.Fprint(w, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{"meta.helm.sh/release-name":"shop","meta.helm.sh/release-namespace":"apps"}}}`)
				case r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/configmaps/x"):
					deleted++
					fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
				case !answer(0, w, r):
					m.handle(w, r)
				}
			})
			connected := m.connect(t)
			u := removal{member: connected, cluster: deletedCluster(), namespaces: []string{system}, releases: connected.openReleases}
			failed := u.run(t.Context())
			if row.refused {
				require.NotNil(t, failed)
				assert.Equal(t, fleet.ReasonMemberError, failed.reason)
				assert.Contains(t, failed.message, "the API server serves more than 1000 versions of API groups or 4000 kinds, so the hub cannot")
				assert.Zero(t, deleted)
			} else {
				assert.Equal(t, row.objects, deleted, "%+v", failed)
			}
			assert.Equal(t, row.requests, requests)
			assert.LessOrEqual(t, len(connections), maxConnections)
			assert.Less(t, goroutines, before+100)
		})
	}
}

// While Helm works with a large history, no other call of the workspace has one.
func TestUninstallation_largeHistory(t *testing.T) {
	for name, row := range map[string]struct {
		manifest string
		alone    bool
	}{
		"a small history":            {"apiVersion: v1\nkind: X\nmetadata: {name: x}\n", false},
		"a large history":            {"apiVersion: v1\nkind: X\nmetadata: {name: x}\nx: " + strings.Repeat("x", int(smallHistory.Bytes)) + "\n", true},
		"a manifest with many nodes": {"apiVersion: v1\nkind: X\nmetadata: {name: x}\nx: [" + strings.Repeat("1,", smallHistory.Values) + "]\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeMember(t)
			newWorkloads(m)
			connected, answer, updates := m.connect(t), history(t, row.manifest), 0
			m.fault = answer
			m.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPut {
					m.handle(w, r)
					return
				}
				updates++ // Helm has decoded the history, and parses the manifest next
				free := connected.large.Of.TryAcquire(largeResponses)
				assert.Equal(t, row.alone, !free)
				if free {
					connected.large.Of.Release(largeResponses)
				}
				answer(0, w, r)
			})
			u := removal{member: connected, cluster: deletedCluster(), namespaces: []string{system}, releases: connected.openReleases}
			failed := u.run(t.Context())
			assert.Equal(t, 1, updates, "%+v", failed)
			assert.True(t, connected.large.Of.TryAcquire(largeResponses), "it has given its turn back")
		})
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

// Go decompresses only what it has asked for itself.
func TestAnswersAreNotCompressed(t *testing.T) {
	asked := make(chan []string, 1)
	member := serve(t, func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Values("Accept-Encoding") })
	parsed, err := parseKubeconfig(kubeconfigSecret(with(t, to(member))))
	require.NoError(t, err)
	m, err := newMemberClient(parsed, config.TLSModeStrict, loopback, semaphore.NewWeighted(largeResponses))
	require.NoError(t, err)
	defer m.close()
	response, err := (&http.Client{Transport: m.transport}).Get(member.URL)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Empty(t, <-asked)
}
