package agent

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/agenttest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	status401 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`
	status403 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"Forbidden","code":403}`
	status404 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"NotFound","code":404}`
	status500 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"etcd","reason":"InternalError","code":500}`
)

// stubHub answers an agent as a hub does. Tests with it check exact requests and inject faults. Other tests use a real API server.
type stubHub struct {
	t      *testing.T
	server *httptest.Server

	mutex           sync.Mutex
	requests        []string                           // "METHOD path as token"
	record          func(r *http.Request, body []byte) // sees every request
	created         []*fleet.ClusterRegistration
	credentialReads int               // reads of the answer Secret
	heartbeats      []string          // the bodies of all heartbeats and proofs
	grant           map[string]string // content of the answer Secret
	grantAtRead     int               // the read from which on the answer Secret exists
	// grantAfterHeartbeat makes the answer Secret exist only after a heartbeat has arrived.
	grantAfterHeartbeat bool
	rejected            map[string]bool // tokens that the API server does not know
	// issue answers TokenRequests.
	issue              func(lifetime time.Duration) (token string)
	requestedLifetimes []time.Duration
	// dateless omits the date from the answers, so that the agent uses its own clock. Otherwise clock, if it is set, is the clock of the hub.
	dateless bool
	clock    clock.PassiveClock
	fault    func(r *http.Request) (code int, body string)
}

func newStubHub(t *testing.T) *stubHub {
	t.Helper()
	h := &stubHub{t: t, rejected: map[string]bool{}, grantAtRead: 3, grant: map[string]string{
		"token": newToken, "deploymentNamespace": "cluster-ns", "clusterNamespace": "fleet-default", "clusterName": "one",
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusterregistrations", h.createRequest)
	mux.HandleFunc("GET /api/v1/namespaces/cattle-fleet-clusters-system/secrets/{name}", h.readCredential)
	mux.HandleFunc("GET /apis/fleet.cattle.io/v1alpha1/namespaces/cluster-ns/bundledeployments", h.listBundleDeployments)
	mux.HandleFunc("POST /api/v1/namespaces/cluster-ns/serviceaccounts/the-agent/token", h.tokenRequest)
	mux.HandleFunc("PATCH /apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusters/one/status", h.heartbeat)
	h.server = httptest.NewTLSServer(h.front(mux))
	t.Cleanup(h.server.Close)
	return h
}

func (h *stubHub) ca() string { return agenttest.PEM(h.server) }

// front records requests, injects faults and rejects tokens before a request is carried out.
func (h *stubHub) front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // cut off: the agent stops
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		h.requests = append(h.requests, r.Method+" "+r.URL.Path+" as "+token)
		if h.record != nil {
			h.record(r, body)
		}
		switch {
		case h.dateless:
			w.Header()["Date"] = nil
		case h.clock != nil:
			w.Header().Set("Date", h.clock.Now().Format(http.TimeFormat))
		}
		if h.fault != nil {
			if code, body := h.fault(r); code != 0 {
				reply(w, code, body)
				return
			}
		}
		if h.rejected[token] {
			reply(w, http.StatusUnauthorized, status401)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/html")
	if strings.HasPrefix(body, "{") {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body)
}

func (h *stubHub) createRequest(w http.ResponseWriter, r *http.Request) {
	request := &fleet.ClusterRegistration{}
	assert.NoError(h.t, json.NewDecoder(r.Body).Decode(request))
	for _, earlier := range h.created {
		if earlier.Name == request.Name {
			reply(w, http.StatusConflict, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`)
			return
		}
	}
	h.created = append(h.created, request)
	writeJSON(h.t, w, http.StatusCreated, request)
}

func (h *stubHub) readCredential(w http.ResponseWriter, r *http.Request) {
	h.credentialReads++
	for _, request := range h.created {
		name := registration.AnswerSecretName(request.Spec.ClientID, request.Spec.ClientRandom)
		if name == r.PathValue("name") && h.credentialReads >= h.grantAtRead && (len(h.heartbeats) > 0 || !h.grantAfterHeartbeat) {
			writeJSON(h.t, w, http.StatusOK, &corev1.Secret{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: name},
				Data: toBytes(h.grant),
			})
			return
		}
	}
	if h.credentialReads%2 == 1 {
		reply(w, http.StatusForbidden, status403)
		return
	}
	reply(w, http.StatusNotFound, status404)
}

func (h *stubHub) listBundleDeployments(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, `{"kind":"BundleDeploymentList","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"resourceVersion":"7"},"items":[]}`)
}

func (h *stubHub) tokenRequest(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	assert.NoError(h.t, err)
	request := &authenticationv1.TokenRequest{} // clients of the core kinds speak protobuf
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, request)
	assert.NoError(h.t, err)
	request.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"}
	lifetime := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
	h.requestedLifetimes = append(h.requestedLifetimes, lifetime)
	request.Status.Token = h.issue(lifetime)
	writeJSON(h.t, w, http.StatusCreated, request)
}

func (h *stubHub) heartbeat(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	assert.NoError(h.t, err)
	h.heartbeats = append(h.heartbeats, string(body))
	reply(w, http.StatusOK, `{"kind":"Cluster","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"name":"one"}}`)
}

// set changes fields of the hub while it runs.
func (h *stubHub) set(change func()) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	change()
}

// count counts the requests that contain the text, see requests.
func (h *stubHub) count(text string) int {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	n := 0
	for _, r := range h.requests {
		if strings.Contains(r, text) {
			n++
		}
	}
	return n
}

func (h *stubHub) registrations() []*fleet.ClusterRegistration {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return append([]*fleet.ClusterRegistration(nil), h.created...)
}

func writeJSON(t *testing.T, w http.ResponseWriter, code int, object any) {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	reply(w, code, string(data))
}

func toBytes(data map[string]string) map[string][]byte {
	out := map[string][]byte{}
	for k, v := range data {
		out[k] = []byte(v)
	}
	return out
}
