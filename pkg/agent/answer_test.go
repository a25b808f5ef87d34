package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	status401 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`
	status403 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"Forbidden","code":403}`
	status404 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no","reason":"NotFound","code":404}`
	status500 = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"etcd","reason":"InternalError","code":500}`
)

// What servers and proxies really send, read by the real client.
func TestOnlyA401OfTheAPIServerIsARefusal(t *testing.T) {
	const (
		jsonType = "application/json"
		html     = "text/html"
	)
	rows := map[string]struct {
		code        int
		contentType string
		body        string
		want        Answer
	}{
		"a list":                                 {200, jsonType, `{"kind":"BundleDeploymentList","apiVersion":"fleet.cattle.io/v1alpha1","metadata":{"resourceVersion":"7"},"items":[]}`, Accepts},
		"the API server's 401":                   {401, jsonType, status401, Refuses},
		"a proxy's 401 with a page":              {401, html, "<h1>401 Authorization Required</h1>", Obstructed},
		"a proxy's 401 without a body":           {401, "", "", Obstructed},
		"a proxy's 401 with JSON of its own":     {401, jsonType, `{"type":"error","status":"401","message":"must authenticate"}`, Obstructed},
		"a proxy's 401 that says JSON and lies":  {401, jsonType, `nonsense`, Obstructed},
		"a 401 with a Status of success":         {401, jsonType, `{"kind":"Status","apiVersion":"v1","status":"Success"}`, Obstructed},
		"the API server's 403":                   {403, jsonType, status403, Obstructed},
		"a proxy's 403":                          {403, html, "<h1>Forbidden</h1>", Obstructed},
		"the API server's 404":                   {404, jsonType, status404, Obstructed},
		"a proxy's 404":                          {404, html, "<h1>Not Found</h1>", Obstructed},
		"the API server's 500":                   {500, jsonType, status500, Obstructed},
		"a proxy's 502":                          {502, html, "<h1>Bad Gateway</h1>", Obstructed},
		"a proxy's 503":                          {503, "text/plain", "no healthy upstream", Obstructed},
		"too many requests":                      {429, "text/plain", "slow down", Obstructed},
		"a redirect to a login page":             {302, html, "", Obstructed},
		"a captive portal that says yes to all":  {200, html, "<h1>Welcome</h1>", Unreachable},
		"JSON that is no list of what was asked": {200, jsonType, `{"welcome":true}`, Unreachable},
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

func TestSilenceIsNotARefusal(t *testing.T) {
	t.Parallel() // client-go asks who hangs up ten times, a second apart
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer silent.Close()
	defer close(release)
	hangsUp := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer hangsUp.Close()
	foreign := httptest.NewTLSServer(http.NotFoundHandler())
	defer foreign.Close()

	for name, url := range map[string]string{
		"nobody listens":                   "http://127.0.0.1:1",
		"the name does not exist":          "https://hub.invalid",
		"it accepts and never answers":     silent.URL,
		"it hangs up":                      hangsUp.URL,
		"its certificate is by another CA": foreign.URL,
		"it does not speak TLS":            "https" + silent.URL[len("http"):],
	} {
		t.Run(name, func(t *testing.T) {
			err := probe(t, url)
			require.Error(t, err)
			assert.Equal(t, Unreachable.String(), Classify(err).String(), "%v", err)
		})
	}
}

func TestWrappedErrorsAreSeenThrough(t *testing.T) {
	refusal := apierrors.NewUnauthorized("Unauthorized")
	assert.Equal(t, Refuses, Classify(fmt.Errorf("heartbeat: %w", refusal)))
	synthesized := apierrors.NewGenericServerResponse(401, "get", schema.GroupResource{}, "x", "page", 0, true)
	assert.Equal(t, Obstructed, Classify(fmt.Errorf("heartbeat: %w", synthesized)))
	assert.Equal(t, Unreachable, Classify(fmt.Errorf("heartbeat: %w", context.DeadlineExceeded)))
	assert.Equal(t, Unreachable, Classify(errors.New("anything else")))
}

func TestARefusalIsCertainAfterThreeInARowOverSomeTime(t *testing.T) {
	type observation struct {
		at     time.Duration
		answer Answer
		want   bool
	}
	rows := map[string][]observation{
		"three in a row, far enough apart": {{0, Refuses, false}, {3 * time.Second, Refuses, false}, {6 * time.Second, Refuses, true}},
		"three at once prove nothing":      {{0, Refuses, false}, {1, Refuses, false}, {2, Refuses, false}, {5 * time.Second, Refuses, true}},
		"two far apart are too few":        {{0, Refuses, false}, {time.Hour, Refuses, false}, {2 * time.Hour, Refuses, true}},
		"an acceptance clears it":          {{0, Refuses, false}, {3 * time.Second, Refuses, false}, {4 * time.Second, Accepts, false}, {6 * time.Second, Refuses, false}},
		"so does an outage":                {{0, Refuses, false}, {3 * time.Second, Refuses, false}, {4 * time.Second, Unreachable, false}, {6 * time.Second, Refuses, false}},
		"so does a proxy":                  {{0, Refuses, false}, {3 * time.Second, Refuses, false}, {4 * time.Second, Obstructed, false}, {6 * time.Second, Refuses, false}},
	}
	for name, observations := range rows {
		t.Run(name, func(t *testing.T) {
			s := DefaultTiming().suspicion()
			start := time.Unix(1000, 0)
			for i, o := range observations {
				assert.Equal(t, o.want, s.observe(o.answer, start.Add(o.at)), "observation %d", i)
			}
		})
	}
}

// probe asks a server of our own with the production client.
func probe(t *testing.T, url string) error {
	t.Helper()
	l := testLife(t)
	l.config.Timing.Request = 2 * time.Second // one of them never answers
	h, err := l.dial(hubAccess{server: url, token: "secret", namespace: "cluster-ns"}, "")
	require.NoError(t, err)
	defer h.close()
	return h.probe(t.Context())
}
