package hubclient

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/transport"
)

func TestConnectionLimits(t *testing.T) {
	d := dialer(t)
	c := d.restConfig(agenttest.HubURL)
	assert.Equal(t, d.Timing.Request, c.Timeout)
	assert.InDelta(t, qps, c.RateLimiter.QPS(), 0)
	for range burst {
		assert.True(t, c.RateLimiter.TryAccept())
	}
	assert.False(t, c.RateLimiter.TryAccept())
	assert.Equal(t, "fleetagent/test", c.UserAgent)
	assert.Equal(t, rest.TLSClientConfig{}, c.TLSClientConfig, "the transport verifies certificates")
	conn, err := d.Dial(Access{Endpoint: Endpoint{Server: agenttest.HubURL}})
	require.NoError(t, err)
	limiter := conn.Core.CoreV1().RESTClient().GetRateLimiter()
	assert.Same(t, limiter, conn.Fleet.FleetV1alpha1().RESTClient().GetRateLimiter(), "one for all clients")
	assert.Same(t, limiter, conn.Watching.FleetV1alpha1().RESTClient().GetRateLimiter(), "one for all clients")
	assert.NotNil(t, conn.idle.Proxy, "the proxy of the environment")
	assert.Equal(t, 30*time.Second, timing.Default().Request)
}

// The definition of Fleet's hub lacks most of the fields, and its API server would return a warning for each of them at each heartbeat.
func TestPatchAgentStatus_warnings(t *testing.T) {
	var asked string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.Query().Get("fieldValidation")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Cluster","apiVersion":"fleet.cattle.io/v1alpha1"}`))
	}))
	t.Cleanup(server.Close)
	h, err := dialer(t).Dial(Access{Endpoint: Endpoint{Server: server.URL, CA: []byte(agenttest.PEM(server)), Mode: "strict"}, Token: "t", Namespace: "cluster-ns"})
	require.NoError(t, err)
	require.NoError(t, h.PatchAgentStatus(t.Context(), "ws", "alice", map[string]any{"version": "v1"}))
	assert.Equal(t, "PATCH Ignore", asked)
}

func TestRetryAfterIsLimited(t *testing.T) {
	for asked, waits := range map[string]string{"3600": "30", "31": "30", "30": "30", "1": "1", "": "", "soon": "soon"} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked != "" {
				w.Header().Set("Retry-After", asked)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		t.Cleanup(server.Close)
		h, err := dialer(t).Dial(Access{Endpoint: Endpoint{Server: server.URL, CA: []byte(agenttest.PEM(server)), Mode: "strict"}, Token: agenttest.RegistrationToken, Namespace: "cluster-ns"})
		require.NoError(t, err)
		for _, client := range []rest.Interface{h.Fleet.Discovery().RESTClient(), h.Watching.Discovery().RESTClient()} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
			require.NoError(t, err)
			response, err := client.(*rest.RESTClient).Client.Do(request)
			require.NoError(t, err)
			response.Body.Close()
			assert.Equal(t, waits, response.Header.Get("Retry-After"), asked)
		}
		h.Close()
	}
}

// hubWithItsCA returns a hub with its own CA and without BundleDeployments.
func hubWithItsCA(t *testing.T, seen *[]string) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*seen = append(*seen, r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"BundleDeploymentList","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{agenttest.ServerCertificate(t)}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// The rows share a process: the TLS mode of a connection must not apply to another one.
func TestUntrustedCertificate(t *testing.T) {
	const source = "key apiServerCA of Secret fleet-agent-bootstrap"
	var seen []string
	server := hubWithItsCA(t, &seen)
	right, wrong := agenttest.PEM(server), agenttest.CA(t)
	otherName := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	rows := map[string]struct {
		mode        config.TLSMode
		ca, address string
		want        []string // of the error; nil when the agent gets through
	}{
		"strict with the CA":           {config.TLSModeStrict, right, server.URL, nil},
		"system-store with the CA":     {config.TLSModeSystemStore, right, server.URL, nil},
		"no mode, with the CA":         {"", right, server.URL, nil},
		"strict with two CAs":          {config.TLSModeStrict, wrong + right, server.URL, nil},
		"strict with another CA":       {config.TLSModeStrict, wrong, server.URL, []string{"the certificate of the hub is not trusted: ", "unknown authority", "agentTLSMode is strict, so that only the given CA is trusted; correct " + source}},
		"system-store with another CA": {config.TLSModeSystemStore, wrong, server.URL, []string{"unknown authority", "agentTLSMode is system-store", source}},
		"system-store without a CA":    {config.TLSModeSystemStore, "", server.URL, []string{"unknown authority", "the CAs of this image are trusted", source}},
		"another name":                 {config.TLSModeStrict, right, otherName, []string{"the certificate of the hub is not for the address " + otherName, "correct the address in Secret s"}},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			seen = nil
			h, err := dialer(t).Dial(Access{Endpoint: Endpoint{Server: row.address, CA: []byte(row.ca), Mode: row.mode, Source: "Secret s", CASource: source}, Token: agenttest.NewToken, Namespace: "ns"})
			require.NoError(t, err)
			defer h.Close()
			err = h.Probe(t.Context())
			if row.want == nil {
				require.NoError(t, err)
				assert.Equal(t, []string{"Bearer " + agenttest.NewToken}, seen)
				return
			}
			for _, want := range row.want {
				require.ErrorContains(t, err, want)
			}
			assert.Equal(t, Unreachable, Classify(err), "the credential was not rejected")
			assert.Empty(t, seen, "no request to see whether somebody is there")
			assert.NotContains(t, err.Error(), agenttest.NewToken)
		})
	}
}

func TestExplain_expiredCertificate(t *testing.T) {
	err := (&hubTransport{}).explain(&url.Error{Err: x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: x509.Expired}})
	require.ErrorContains(t, err, "the certificate of the hub is not valid: ")
	require.ErrorContains(t, err, "; renew it, or correct the clock of this cluster")
	assert.NotContains(t, err.Error(), "agentTLSMode", "the CA is right")
}

// The hub's certificate is of a private CA that is given, of one of the operating system, or of an unknown one.
func TestTLSRoots(t *testing.T) {
	given := httptest.NewTLSServer(http.NotFoundHandler())
	defer given.Close()
	certificate := given.Certificate()
	private := agenttest.PEM(given)
	emptySystem := func() (*x509.CertPool, error) { return x509.NewCertPool(), nil }
	systemKnows := func() (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		pool.AddCert(certificate)
		return pool, nil
	}
	rows := map[string]struct {
		mode    config.TLSMode
		ca      string
		system  func() (*x509.CertPool, error)
		trusted bool
		want    string // of the error
	}{
		"strict with the CA":                        {config.TLSModeStrict, private, emptySystem, true, ""},
		"strict does not ask the system":            {config.TLSModeStrict, agenttest.CA(t), systemKnows, false, ""},
		"strict without a CA":                       {config.TLSModeStrict, "", systemKnows, false, "there is no CA to trust; set key apiServerCA of Secret fleet-agent-bootstrap"},
		"system-store with a CA the system lacks":   {config.TLSModeSystemStore, private, emptySystem, true, ""},
		"system-store without a CA":                 {config.TLSModeSystemStore, "", systemKnows, true, ""},
		"system-store with a CA that is not needed": {config.TLSModeSystemStore, agenttest.CA(t), systemKnows, true, ""},
		"system-store and a stranger":               {config.TLSModeSystemStore, "", emptySystem, false, ""},
		"no mode is system-store":                   {"", "", systemKnows, true, ""},
		"unknown mode":                              {"loose", private, systemKnows, false, `agentTLSMode "loose"`},
		"a CA of garbage":                           {config.TLSModeSystemStore, "xx", systemKnows, false, "not a PEM certificate"},
		"a system whose CAs cannot be read":         {config.TLSModeSystemStore, private, func() (*x509.CertPool, error) { return nil, assert.AnError }, false, assert.AnError.Error()},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			endpoint := Endpoint{Server: given.URL, CA: []byte(row.ca), Mode: row.mode, CASource: "key apiServerCA of Secret fleet-agent-bootstrap"}
			roots, err := tlsRoots(endpoint, row.system)
			if row.want != "" {
				require.ErrorContains(t, err, row.want)
				return
			}
			require.NoError(t, err)
			_, err = certificate.Verify(x509.VerifyOptions{Roots: roots})
			assert.Equal(t, row.trusted, err == nil, "%v", err)
		})
	}
}

func TestInsecureSchemeIsWarnedOfOnce(t *testing.T) {
	log, hook := agenttest.Log(t)
	d := dialer(t)
	d.Log = log
	for _, url := range []string{"https://hub.example.com", "http://hub.example.com", "http://hub.example.com", "http://other.example.com"} {
		h, err := d.Dial(Access{Endpoint: Endpoint{Server: url, Mode: "system-store"}, Token: agenttest.NewToken, Namespace: "ns"})
		require.NoError(t, err)
		h.Close()
	}
	require.Len(t, hook.AllEntries(), 1)
	assert.Equal(t, logrus.WarnLevel, hook.LastEntry().Level)
	assert.True(t, strings.HasPrefix(hook.LastEntry().Message, "The address of the hub is http://hub.example.com: the token is sent unencrypted"))
}

func TestClockSkew(t *testing.T) {
	hubTime := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, row := range map[string]struct {
		ahead, trip time.Duration // of the own clock; there and back
		date        string
		want        time.Duration
	}{
		"no difference":                     {500 * time.Millisecond, 100 * time.Millisecond, "", 0},
		"less than the precision of a date": {1400 * time.Millisecond, 0, "", 0},
		"ahead":                             {61 * time.Second, time.Second, "", 61 * time.Second},
		"behind":                            {-90 * time.Second, 0, "", -90 * time.Second},
		"slow answer":                       {time.Hour, 3 * time.Second, "", 0},
		"no date":                           {time.Hour, 0, "yesterday", 0},
		"slow answer, small difference":     {500 * time.Millisecond, 1900 * time.Millisecond, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := &hubTransport{}
			middle := hubTime.Add(row.ahead)
			date := hubTime.Format(http.TimeFormat)
			if row.date != "" {
				date = row.date
			}
			m.measureSkew(middle.Add(-row.trip/2), middle.Add(row.trip/2), date)
			got, known := m.clockSkew()
			assert.Equal(t, row.want != 0, known)
			if known {
				assert.InDelta(t, row.want.Seconds(), got.Seconds(), 1)
				assert.Zero(t, got%time.Second)
			}
		})
	}
}

func TestClockSkew_suspendedDuringTheRequest(t *testing.T) {
	now, m := agenttest.NewClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), &hubTransport{}
	sent := now.Now()
	now.StepWall(24 * time.Hour)
	m.measureSkew(sent, now.Now(), now.Now().Format(http.TimeFormat))
	_, known := m.clockSkew()
	assert.False(t, known)
}

func TestUseToken(t *testing.T) {
	var sent []string
	hub := &hubTransport{clock: clock.RealClock{}}
	api := transport.Sender(func(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
		sent = append(sent, r.Header.Get("Authorization"))
		return &http.Response{StatusCode: http.StatusOK}, nil
	}).Wrap(nil)
	for _, token := range []string{"one", "two"} {
		(&Connection{transport: hub}).UseToken(token)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, agenttest.HubURL, http.NoBody)
		require.NoError(t, err)
		_, err = hub.send(api, request)
		require.NoError(t, err)
		assert.Empty(t, request.Header, "the caller's request does not change")
	}
	assert.Equal(t, []string{"Bearer one", "Bearer two"}, sent)
}
