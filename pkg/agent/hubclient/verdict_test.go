package hubclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent/timing"
)

const (
	status401 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`
	status403 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"Forbidden","code":403}`
	status404 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"NotFound","code":404}`
	status500 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"etcd","reason":"InternalError","code":500}`
)

// The answers of real servers and proxies, read by the real client: only a 401 of the API server is a rejection.
func TestClassifyAnswers(t *testing.T) {
	const (
		jsonType = "application/json"
		html     = "text/html"
	)
	rows := map[string]struct {
		code        int
		contentType string
		body        string
		want        TokenVerdict
	}{
		"a list":                                  {200, jsonType, `{"kind":"BundleDeploymentList","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"resourceVersion":"7"},"items":[]}`, Accepted},
		"the API server's 401":                    {401, jsonType, status401, Rejected},
		"a proxy's 401 with a page":               {401, html, "<h1>401 Authorization Required</h1>", Obstructed},
		"a proxy's 401 without a body":            {401, "", "", Obstructed},
		"a proxy's 401 with JSON of its own":      {401, jsonType, `{"type":"error","status":"401","message":"must authenticate"}`, Obstructed},
		"a proxy's 401 with a wrong content type": {401, jsonType, `nonsense`, Obstructed},
		"a 401 with a Status of success":          {401, jsonType, `{"kind":"Status","apiVersion":"v1","status":"Success"}`, Obstructed},
		"the API server's 403":                    {403, jsonType, status403, Obstructed},
		"a proxy's 403":                           {403, html, "<h1>Forbidden</h1>", Obstructed},
		"the API server's 404":                    {404, jsonType, status404, Obstructed},
		"a proxy's 404":                           {404, html, "<h1>Not Found</h1>", Obstructed},
		"the API server's 500":                    {500, jsonType, status500, Obstructed},
		"a proxy's 502":                           {502, html, "<h1>Bad Gateway</h1>", Obstructed},
		"a proxy's 503":                           {503, "text/plain", "no healthy upstream", Obstructed},
		"too many requests":                       {429, "text/plain", "slow down", Obstructed},
		"a redirect to a login page":              {302, html, "", Obstructed},
		"a captive portal that answers 200":       {200, html, "<h1>Welcome</h1>", Unreachable},
		"JSON that is not a list":                 {200, jsonType, `{"welcome":true}`, Obstructed},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", row.contentType)
				if row.code == http.StatusFound {
					w.Header().Set("Location", "/login")
				}
				w.WriteHeader(row.code)
				_, _ = w.Write([]byte(row.body))
			}))
			defer server.Close()
			err := probe(t, server.URL)
			assert.Equal(t, row.want.String(), Classify(err).String(), "%v", err)
		})
	}
}

func TestClassifySilence(t *testing.T) {
	t.Parallel() // client-go repeats a request ten times, a second apart, when the connection is closed
	sample.Long(t)
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer silent.Close()
	defer close(release)
	hangsUp := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer hangsUp.Close()
	foreign := httptest.NewTLSServer(http.NotFoundHandler())
	defer foreign.Close()

	for name, url := range map[string]string{
		"no listener":               "http://127.0.0.1:1",
		"unknown host name":         "https://hub.invalid",
		"accepted, never answered":  silent.URL,
		"connection closed":         hangsUp.URL,
		"certificate of another CA": foreign.URL,
		"no TLS":                    "https" + silent.URL[len("http"):],
	} {
		t.Run(name, func(t *testing.T) {
			err := probe(t, url)
			require.Error(t, err)
			assert.Equal(t, Unreachable.String(), Classify(err).String(), "%v", err)
		})
	}
}

func TestClassifyWrappedErrors(t *testing.T) {
	refusal := apierrors.NewUnauthorized("Unauthorized")
	assert.Equal(t, Rejected, Classify(fmt.Errorf("heartbeat: %w", refusal)))
	synthesized := apierrors.NewGenericServerResponse(401, "get", schema.GroupResource{}, "x", "page", 0, true)
	assert.Equal(t, Obstructed, Classify(fmt.Errorf("heartbeat: %w", synthesized)))
	assert.Equal(t, Unreachable, Classify(fmt.Errorf("heartbeat: %w", context.DeadlineExceeded)))
	assert.Equal(t, Unreachable, Classify(errors.New("anything else")))
}

func TestRejectionThreshold(t *testing.T) {
	type answered struct {
		at     time.Duration
		answer TokenVerdict
		want   bool
	}
	rows := map[string][]answered{
		"three in a row, far enough apart":     {{0, Rejected, false}, {3 * time.Second, Rejected, false}, {6 * time.Second, Rejected, true}},
		"three within the spread: not certain": {{0, Rejected, false}, {1, Rejected, false}, {2, Rejected, false}, {5 * time.Second, Rejected, true}},
		"two far apart: not certain":           {{0, Rejected, false}, {time.Hour, Rejected, false}, {2 * time.Hour, Rejected, true}},
		"reset by an acceptance":               {{0, Rejected, false}, {3 * time.Second, Rejected, false}, {4 * time.Second, Accepted, false}, {6 * time.Second, Rejected, false}},
		"reset by an outage":                   {{0, Rejected, false}, {3 * time.Second, Rejected, false}, {4 * time.Second, Unreachable, false}, {6 * time.Second, Rejected, false}},
		"reset by a proxy":                     {{0, Rejected, false}, {3 * time.Second, Rejected, false}, {4 * time.Second, Obstructed, false}, {6 * time.Second, Rejected, false}},
	}
	for name, observations := range rows {
		t.Run(name, func(t *testing.T) {
			s := NewRejectionThreshold(timing.Default())
			start := time.Unix(1000, 0)
			for i, o := range observations {
				assert.Equal(t, o.want, s.Reached(o.answer, start.Add(o.at)), "observation %d", i)
			}
		})
	}
}

// Only the API server itself rejects a credential, whatever proxies answer.
func FuzzClassify(f *testing.F) {
	f.Add(401, "Unauthorized", "x", true)
	f.Add(401, "Unauthorized", "x", false)
	f.Add(403, "", "", false)
	f.Add(0, "", "", true)
	f.Fuzz(func(t *testing.T, code int, reason, message string, byProxy bool) {
		status := &apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(code % 1000), Reason: metav1.StatusReason(reason), Message: message}}
		if byProxy {
			status.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse}}}
		}
		assert.Equal(t, code%1000 == 401 && !byProxy, Classify(status) == Rejected)
	})
}

func FuzzRejectionThreshold(f *testing.F) {
	f.Add([]byte{2, 2, 2, 2, 2})
	f.Add([]byte{2, 1, 2, 3, 2, 2})
	f.Fuzz(func(t *testing.T, answers []byte) {
		s, now := RejectionThreshold{spread: 2 * time.Second}, time.Unix(0, 0)
		row := 0
		for _, b := range answers {
			answer := TokenVerdict(b % 5)
			now = now.Add(time.Second)
			row++
			if answer != Rejected {
				row = 0
			}
			assert.Equal(t, row >= 3, s.Reached(answer, now))
		}
	})
}

// probe asks a server of the test with the production client.
func probe(t *testing.T, url string) error {
	t.Helper()
	d := dialer(t)
	d.Timing.Request = 2 * time.Second // one of the servers never answers
	c, err := d.Dial(Access{Endpoint: Endpoint{Server: url}, Token: "secret", Namespace: "cluster-ns"})
	require.NoError(t, err)
	defer c.Close()
	return c.Probe(t.Context())
}

func dialer(t *testing.T) *Dialer {
	t.Helper()
	log, _ := agenttest.Log(t)
	return &Dialer{UserAgent: "fleetagent/test", Timing: *agenttest.Quick(), Clock: clock.RealClock{}, Log: log}
}
