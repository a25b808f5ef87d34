package clusterimport

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/config"
)

// memberUID is the UID of the Namespace kube-system of a fakeMember.
const memberUID = "5e8b0a5c-3f1d-4c3b-8a52-6f0f8f3c1d2e"

// fakeMember is a fake API server for imports: it stores applied objects and records every request.
type fakeMember struct {
	*httptest.Server

	mu        sync.Mutex
	requests  []string
	objects   map[string]map[string]any // by path
	revisions []any                     // of Helm releases
	agents    []any                     // Deployments of other agents
	pods      []any                     // of the agent; they end after they were listed
	morePods  string                    // where each list of the Pods says that the next page begins
	ended     func()                    // is called when the Pods have ended, with mu held
	fault     func(n int, w http.ResponseWriter, r *http.Request) bool
}

func newFakeMember(t *testing.T) *fakeMember {
	t.Helper()
	m := &fakeMember{objects: map[string]map[string]any{}}
	m.Server = serve(t, m.handle)
	return m
}

func (m *fakeMember) handle(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	object := map[string]any{}
	if len(body) > 0 {
		if err := yaml.Unmarshal(body, &object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	m.requests = append(m.requests, line(r, object))
	if m.fault != nil && m.fault(len(m.requests)-1, w, r) {
		return
	}
	m.answer(w, r, object)
}

func (m *fakeMember) answer(w http.ResponseWriter, r *http.Request, object map[string]any) {
	stored, found := m.objects[r.URL.Path]
	switch {
	case r.URL.Path == "/version":
		reply(w, http.StatusOK, map[string]any{"gitVersion": "v1.36.0"})
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/kube-system" && !found:
		reply(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "kube-system", "uid": memberUID}})
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/secrets":
		m.answerRevisions(w, r)
	case r.Method == http.MethodGet && r.URL.Path == "/apis/apps/v1/deployments":
		reply(w, http.StatusOK, map[string]any{"apiVersion": "apps/v1", "kind": "DeploymentList", "items": m.agents})
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods"):
		m.answerPods(w, r)
	case r.Method == http.MethodPatch && !found:
		m.objects[r.URL.Path] = object
		reply(w, http.StatusCreated, object)
	case r.Method == http.MethodPatch:
		m.objects[r.URL.Path] = object
		reply(w, http.StatusOK, object)
	case !found:
		reply(w, http.StatusNotFound, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404,
		})
	case r.Method == http.MethodDelete:
		delete(m.objects, r.URL.Path)
		reply(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"})
	default:
		reply(w, http.StatusOK, stored)
	}
}

// answerRevisions lists the revisions, in pages if the request asks for that.
func (m *fakeMember) answerRevisions(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	begin, _ := strconv.Atoi(query.Get("continue"))
	end, metadata := len(m.revisions), map[string]any{}
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && begin+limit < end {
		end = begin + limit
		metadata["continue"] = strconv.Itoa(end)
	}
	reply(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "SecretList", "metadata": metadata, "items": m.revisions[begin:end]})
}

// answerPods lists the Pods, which then end, or their metadata if the request asks for that.
func (m *fakeMember) answerPods(w http.ResponseWriter, r *http.Request) {
	pods := slices.Clone(m.pods)
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		for n, pod := range pods {
			pods[n] = map[string]any{"metadata": pod.(map[string]any)["metadata"]}
		}
	}
	replyPods(w, pods, m.morePods)
	if len(m.pods) > 0 && m.ended != nil {
		m.ended()
	}
	m.pods = nil
}

func replyPods(w http.ResponseWriter, pods []any, more string) {
	reply(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "PodList", "metadata": map[string]any{"resourceVersion": "7", "continue": more}, "items": pods})
}

// podNeverEnds is a fault: the Pod of the agent is in each list.
func podNeverEnds(_ int, w http.ResponseWriter, r *http.Request) bool {
	if !strings.HasSuffix(r.URL.Path, "/pods") {
		return false
	}
	replyPods(w, []any{agentPod}, "")
	return true
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// line is the text of a request in transcripts. It contains the objects of this package whole, and of others the labels.
func line(r *http.Request, object map[string]any) string {
	query := r.URL.Query()
	query.Del("timeout")
	text := strings.TrimSuffix(r.Method+" "+r.URL.Path+"?"+query.Encode(), "?") + "\n"
	if len(object) == 0 || r.Method != http.MethodPatch {
		return text
	}
	shown := object
	if kind := object["kind"]; kind != "Namespace" && kind != "Secret" && kind != "ConfigMap" {
		meta, _ := object["metadata"].(map[string]any)
		shown = map[string]any{"kind": kind, "labels": meta["labels"]}
	}
	data, err := yaml.Marshal(shown)
	if err != nil {
		return text + err.Error() + "\n"
	}
	for row := range strings.Lines(string(data)) {
		text += "    " + row
	}
	return text
}

// connect returns a client for the member.
func (m *fakeMember) connect(t *testing.T) *memberClient {
	t.Helper()
	parsed, err := parseKubeconfig(kubeconfigSecret(with(t, to(m.Server))))
	require.NoError(t, err)
	connected, err := newMemberClient(parsed, config.TLSModeStrict, loopback, semaphore.NewWeighted(largeResponses))
	require.NoError(t, err)
	t.Cleanup(connected.close)
	return connected
}

func (m *fakeMember) transcript() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.requests, "")
}

// state returns all objects on the member.
func (m *fakeMember) state(t *testing.T) map[string]map[string]any {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.objects)
}

func (m *fakeMember) paths() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.objects))
}

// put stores an object that existed before.
func (m *fakeMember) put(path string, object map[string]any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[path] = object
}

// failAt fails request number at: "hang up" closes the connection, "forbid" answers 403, everything else 500.
func failAt(at int, how string) func(int, http.ResponseWriter, *http.Request) bool {
	return func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n != at {
			return false
		}
		switch how {
		case "hang up":
			panic(http.ErrAbortHandler)
		case "forbid":
			reply(w, http.StatusForbidden, metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403, Message: "not yours",
			})
		default:
			http.Error(w, fmt.Sprint("fault ", how), http.StatusInternalServerError)
		}
		return true
	}
}
