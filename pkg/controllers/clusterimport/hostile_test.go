package clusterimport

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/sample"
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

// hostileManifests are manifests of less than 8 MiB that take a multiple of it in memory when they are parsed.
var hostileManifests = map[string]string{
	"many empty lists":       "x: [" + strings.Repeat("[],", 500_000) + "[]]",
	"a million empty maps":   "x:\n" + strings.Repeat("- a:\n", 1_000_000),
	"aliases of a long text": "a: &a " + strings.Repeat("x", 100_000) + "\nx: [" + strings.Repeat("*a,", 5000) + "*a]",
	"many aliases":           "x: &a [1]\ny: [" + strings.Repeat("*a,", 15_000) + "*a]",
}

// hasAllTurns reports whether all turns to read large responses were given back, and takes them.
func hasAllTurns(large *semaphore.Weighted) bool { return large.TryAcquire(largeResponses) }

func TestHostileHistories(t *testing.T) {
	sample.Long(t)
	const head, limit = "apiVersion: v1\nkind: X\n", 32 << 20
	type row struct{ manifest, says string }
	const refused, reachedDeletion = "the history of a Helm release has YAML that ", "400 Bad Request" // the fake member deletes no Secret
	rows := map[string]row{
		"JSON":         {`{"x":[` + strings.Repeat("{},", 500_000) + `{}]}`, refused},
		"a large head": {head + "metadata: {name: \"" + strings.Repeat("x", 5<<20) + "\"}\n", "larger than 2048 kB or has more than 10000 values"},
	}
	for name, manifest := range hostileManifests {
		indented := strings.ReplaceAll(manifest, "\n", "\n  ")
		rows[name+" in an object"] = row{head + "metadata: {name: x}\n" + manifest, reachedDeletion}
		rows[name+" in the head"] = row{head + "metadata:\n  name: x\n  " + indented, refused}
		rows[name+" in an indented object"] = row{"  apiVersion: v1\n  kind: X\n  " + indented, refused}
	}
	for _, place := range []string{" in the head", " in an indented object"} { // more text than is kept
		rows["a million empty maps"+place] = row{rows["a million empty maps"+place].manifest, "larger than 2048 kB"}
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			m := newFakeMember(t)
			newWorkloads(m)
			m.fault = history(t, row.manifest)
			connected := m.connect(t)
			u := removal{member: connected, cluster: deletedCluster(), namespaces: []string{system}, releases: connected.openReleases, deployments: deploymentsOf()}
			var failed *failure
			assert.Less(t, heap.Allocated(func() { failed = u.run(t.Context()) }), limit)
			require.NotNil(t, failed)
			assert.Equal(t, fleet.ReasonMemberError, failed.reason)
			assert.Contains(t, failed.message, row.says)
			assert.NotContains(t, failed.message, "shop", "nothing that the member has answered")
			assert.Contains(t, m.paths(), "/api/v1/namespaces/"+system+"/secrets/fleet-agent", "the removal is not complete")
			assert.True(t, hasAllTurns(connected.large.Of))
		})
	}
}

// A removal reads only the kinds of the versions of API groups in the manifest, and Helm sends a request for each object of a kind.
func TestHostileDiscovery(t *testing.T) {
	const objects = 300
	m := newFakeMember(t)
	newWorkloads(m)
	var manifest strings.Builder
	for i := range objects {
		fmt.Fprintf(&manifest, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x%d}\n---\n", i)
	}
	manifest.WriteString("apiVersion: a/v1\nkind: Unknown\nmetadata: {name: x}\n---\napiVersion: b/v1\nkind: Unknown\nmetadata: {name: x}\n")
	kinds := strings.Repeat(`{"name":"x","kind":"X","namespaced":true},`, 3000)
	answer := history(t, manifest.String())
	var mu sync.Mutex
	connections, lists, deleted, goroutines, before := map[string]bool{}, map[string]int{}, 0, 0, runtime.NumGoroutine()
	m.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		connections[r.RemoteAddr] = true
		goroutines = max(goroutines, runtime.NumGoroutine())
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/api/v1", r.URL.Path == "/apis/a/v1":
			lists[r.URL.Path]++
			fmt.Fprintf(w, `{"kind":"APIResourceList","resources":[%s{"name":"configmaps","kind":"ConfigMap","namespaced":true}]}`, kinds)
		case strings.HasPrefix(r.URL.Path, "/apis/") && !strings.Contains(r.URL.Path, "/namespaces/"), r.URL.Path == "/apis":
			lists[r.URL.Path]++
			m.answer(w, r, nil)
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
	u := removal{member: connected, cluster: deletedCluster(), namespaces: []string{system}, releases: connected.openReleases, deployments: deploymentsOf()}
	failed := u.run(t.Context())
	assert.Equal(t, objects, deleted, "%+v", failed)
	assert.Equal(t, 1, lists["/api/v1"])
	assert.Zero(t, lists["/apis"])
	assert.NotZero(t, lists["/apis/a/v1"]*lists["/apis/b/v1"], "objects of unknown kinds do not prevent the removal")
	assert.Less(t, lists["/apis/a/v1"]+lists["/apis/b/v1"], 8)
	assert.LessOrEqual(t, len(connections), maxConnections)
	assert.Less(t, goroutines, before+100)
}

// While Helm works with a history that is large even when it is reduced, no other call of the workspace has one.
func TestRemoval_largeHistory(t *testing.T) {
	const object = "---\napiVersion: v1\nkind: X\nmetadata: {name: x%s}\n"
	for name, row := range map[string]struct {
		manifest string
		alone    bool
	}{
		"a small history":                 {fmt.Sprintf(object, ""), false},
		"large objects":                   {fmt.Sprintf(object, "") + "x: " + strings.Repeat("x", 2*int(smallHistory.Bytes)) + "\n", false},
		"objects with many nodes":         {fmt.Sprintf(object, "") + "x: [" + strings.Repeat("1,", 2*smallHistory.Values) + "]\n", false},
		"many objects":                    {strings.Repeat(fmt.Sprintf(object, ""), smallHistory.Values/8+1), true},
		"objects with long names":         {strings.Repeat(fmt.Sprintf(object, strings.Repeat("x", 4000)), int(smallHistory.Bytes)/4000+1), true},
		"a head that is large on its own": {fmt.Sprintf("apiVersion: v1\nkind: X\nmetadata:\n  name: x\n  a: [%s]\n", strings.Repeat("1,", 2*smallHistory.Values)), true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeMember(t)
			newWorkloads(m)
			connected, answer, lists := m.connect(t), history(t, row.manifest), 0
			m.fault = answer
			m.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/api/v1" { // Helm has decoded the history, and parses the manifest
					lists++
					free := connected.large.Of.TryAcquire(largeResponses)
					assert.Equal(t, row.alone, !free)
					if free {
						connected.large.Of.Release(largeResponses)
					}
				}
				assert.NotEqual(t, http.MethodPut, r.Method, "a reduced revision is not stored")
				m.handle(w, r)
			})
			u := removal{member: connected, cluster: deletedCluster(), namespaces: []string{system}, releases: connected.openReleases, deployments: deploymentsOf()}
			failed := u.run(t.Context())
			assert.NotZero(t, lists, "%+v", failed)
			assert.True(t, hasAllTurns(connected.large.Of))
		})
	}
}

// All calls that a tenant may have at the same time read large answers of hostile members, and wait for each other's turns. The answer is
// not much larger than a small one, so that the last call does not wait for longer than a request may take.
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
	assert.True(t, hasAllTurns(large))
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

// What a member sends without an end, where the hub expects an object of the agent, is read up to half a megabyte, and not as far as a Helm history.
func TestHostileAnswersWithoutAnEnd(t *testing.T) {
	imported := wholePlan(t)
	for path, call := range map[string]func(*testing.T, *fakeMember) *failure{
		"/kube-system": func(t *testing.T, m *fakeMember) *failure { t.Helper(); return imported.run(t, m) },
		"/" + system:   func(t *testing.T, m *fakeMember) *failure { t.Helper(); return imported.run(t, m) },
		"/secrets/fleet-agent": func(t *testing.T, m *fakeMember) *failure {
			t.Helper()
			return newWorkloads(m).uninstall(t, deletedCluster())
		},
	} {
		t.Run(path, func(t *testing.T) {
			m := newFakeMember(t)
			sent := 0
			m.fault = func(_ int, w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, path) {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				_, err := io.WriteString(w, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"`)
				for err == nil && sent < int(responseLimits.Bytes) {
					_, err = io.WriteString(w, strings.Repeat("x", 64<<10))
					sent += 64 << 10
				}
				return true
			}
			failed := call(t, m)
			require.NotNil(t, failed)
			assert.Contains(t, failed.message, "larger than 5", "512 kB, and as much more as the hub has sent")
		})
	}
}

// A copy of a pull Secret may be larger than the other objects of an agent, and the member answers with it.
func TestApply_largeObject(t *testing.T) {
	m := newFakeMember(t)
	_, err := m.connect(t).apply(t.Context(), &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "pull"},
		Data: map[string][]byte{".dockerconfigjson": make([]byte, 1000<<10)},
	})
	require.NoError(t, err)
}
