package agent

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/controlplane"
)

// front is a reverse proxy before an API server that injects faults.
type front struct {
	server *httptest.Server

	mutex  sync.Mutex
	before func(r *http.Request) (code int, body string) // answers itself unless the code is 0
	after  func(r *http.Request) (lost bool)             // runs when it was carried out, before the caller hears of it
}

// newHubFront passes the caller's bearer token on.
func newHubFront(t *testing.T, plane *controlplane.ControlPlane) *front {
	t.Helper()
	return newFront(t, &rest.Config{Host: plane.URL(), TLSClientConfig: rest.TLSClientConfig{CAData: plane.CA()}}, startHTTP2)
}

// startHTTP2 starts a server that speaks what an API server speaks.
func startHTTP2(handler http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	return server
}

// newMemberFront makes every caller an administrator.
func newMemberFront(t *testing.T, plane *controlplane.ControlPlane) *front {
	t.Helper()
	return newFront(t, plane.RESTConfig(), httptest.NewServer)
}

func newFront(t *testing.T, behind *rest.Config, start func(http.Handler) *httptest.Server) *front {
	t.Helper()
	target, err := url.Parse(behind.Host)
	require.NoError(t, err)
	transport, err := rest.TransportFor(behind)
	require.NoError(t, err)
	f := &front{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ModifyResponse: func(response *http.Response) error {
			if f.passed(response.Request) {
				return http.ErrAbortHandler
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { reply(w, http.StatusBadGateway, "<h1>502</h1>") },
	}
	f.server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code, body := f.fault(r); code != 0 {
			reply(w, code, body)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(f.server.Close)
	t.Cleanup(f.server.CloseClientConnections)
	return f
}

func (f *front) fault(r *http.Request) (int, string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.before == nil {
		return 0, ""
	}
	return f.before(r)
}

func (f *front) passed(r *http.Request) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.after != nil && f.after(r)
}

func (f *front) set(before func(*http.Request) (int, string), after func(*http.Request) bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.before, f.after = before, after
}

// answers gives the same answer to every request.
func answers(code int, body string) func(*http.Request) (int, string) {
	return func(*http.Request) (int, string) { return code, body }
}

func isWrite(r *http.Request) bool { return r.Method != http.MethodGet }
