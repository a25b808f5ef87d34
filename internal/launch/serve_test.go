package launch

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func ask(t *testing.T, h *Health, path string) (int, string) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer.Code, answer.Body.String()
}

func TestHealth(t *testing.T) {
	tests := map[string]struct {
		happened func(*Health)
		path     string
		code     int
		body     string
	}{
		"healthy from the start":     {func(*Health) {}, "/healthz", http.StatusOK, "ok\n"},
		"healthy while not ready":    {func(h *Health) { h.NotReady("waiting") }, "/healthz", http.StatusOK, "ok\n"},
		"not ready at the start":     {func(*Health) {}, "/readyz", http.StatusServiceUnavailable, "starting\n"},
		"ready":                      {func(h *Health) { h.Ready("at work") }, "/readyz", http.StatusOK, "ok\n"},
		"ready, verbose":             {func(h *Health) { h.Ready("at work") }, "/readyz?verbose", http.StatusOK, "at work\n"},
		"not ready, with the reason": {func(h *Health) { h.Ready("a"); h.NotReady("waiting") }, "/readyz", http.StatusServiceUnavailable, "waiting\n"},
		"ready again":                {func(h *Health) { h.NotReady("a"); h.Ready("b") }, "/readyz?verbose", http.StatusOK, "b\n"},
		"ready, with a fault":        {func(h *Health) { h.Fault("a fault"); h.Ready("at work") }, "/readyz", http.StatusServiceUnavailable, "a fault\n"},
		"the fault has ended":        {func(h *Health) { h.Ready("at work"); h.Fault("a fault"); h.Fault("") }, "/readyz", http.StatusOK, "ok\n"},
		"not ready, and a fault":     {func(h *Health) { h.Fault("a fault"); h.NotReady("waiting") }, "/readyz", http.StatusServiceUnavailable, "waiting\n"},
		"no other path":              {func(h *Health) { h.Ready("a") }, "/metrics", http.StatusNotFound, "404 page not found\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := NewHealth()
			test.happened(h)
			code, body := ask(t, h, test.path)
			assert.Equal(t, test.code, code)
			assert.Equal(t, test.body, body)
		})
	}
}

func TestServeHealth(t *testing.T) {
	require.NoError(t, NewHealth().Serve(t.Context(), ""))

	address := unusedAddress(t)
	taken, err := net.Listen("tcp", address)
	require.NoError(t, err)
	require.ErrorContains(t, NewHealth().Serve(t.Context(), address), "health checks at "+address)

	require.NoError(t, taken.Close())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	require.NoError(t, NewHealth().Serve(ctx, address))
	answer, err := http.Get("http://" + address + "/healthz")
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, "ok\n", string(body))
}

// unusedAddress returns a free address. Its port is below those that Linux assigns to outgoing connections and control planes use, because
// another process could take such a port before it is used.
func unusedAddress(t *testing.T) string {
	t.Helper()
	for {
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10000+rand.IntN(10000)))
		if err != nil {
			continue
		}
		require.NoError(t, listener.Close())
		return listener.Addr().String()
	}
}

func TestMetrics(t *testing.T) {
	address := unusedAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	registerer, err := Metrics(ctx, address)
	require.NoError(t, err)
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "muster_test_total"})
	registerer.MustRegister(counter)
	counter.Inc()

	answer, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Contains(t, string(body), "muster_test_total 1")
	require.Contains(t, string(body), "go_goroutines")

	_, err = Metrics(ctx, address)
	require.ErrorContains(t, err, "metrics at "+address)

	stop()
	require.Eventually(t, func() bool {
		answer, err := http.Get("http://" + address + "/metrics")
		if err == nil {
			_ = answer.Body.Close()
		}
		return err != nil
	}, 2*time.Minute, 20*time.Millisecond)
}

func TestMetrics_parallelScrapes(t *testing.T) {
	address := unusedAddress(t)
	registerer, err := Metrics(t.Context(), address)
	require.NoError(t, err)
	begun, end := make(chan struct{}, maxScrapes), make(chan struct{})
	registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_test"}, func() float64 {
		begun <- struct{}{}
		<-end
		return 1
	}))
	scrape := func() int {
		answer, err := http.Get("http://" + address + "/metrics")
		if !assert.NoError(t, err) {
			return 0
		}
		assert.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	var scrapes sync.WaitGroup
	for range maxScrapes {
		scrapes.Go(func() { assert.Equal(t, http.StatusOK, scrape()) })
	}
	for range maxScrapes {
		<-begun
	}
	assert.Equal(t, http.StatusServiceUnavailable, scrape())
	close(end)
	scrapes.Wait()
	assert.Equal(t, http.StatusOK, scrape())
}

func TestProfiles(t *testing.T) {
	require.NoError(t, Profiles(t.Context(), ""))
	address := unusedAddress(t)
	require.NoError(t, Profiles(t.Context(), address))
	for path, has := range map[string]string{
		"/debug/pprof/":                    "goroutine",
		"/debug/pprof/heap?debug=1":        "heap profile",
		"/debug/pprof/profile?seconds=1":   "",
		"/debug/pprof/goroutine?debug=1":   "TestProfiles",
		"/debug/pprof/trace?seconds=0.001": "go 1.",
	} {
		answer, err := http.Get("http://" + address + path)
		require.NoError(t, err, path)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err, path)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, http.StatusOK, answer.StatusCode, path)
		assert.NotEmpty(t, body, path)
		assert.Contains(t, string(body), has, path)
	}
	require.ErrorContains(t, Profiles(t.Context(), address), "profiles at "+address)
}

// Hosts of members would be a series for each of them.
func TestMeasureRequests(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	own, member := httptest.NewServer(answer), httptest.NewServer(answer)
	defer own.Close()
	defer member.Close()
	MeasureRequests(HostOf(&rest.Config{Host: own.URL}))
	registry, err := Metrics(t.Context(), "")
	require.NoError(t, err)
	for _, server := range []string{own.URL, member.URL, member.URL} {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: server})
		require.NoError(t, err)
		_ = client.CoreV1().RESTClient().Get().AbsPath("/version").Do(context.Background())
	}
	assert.InDelta(t, 1, testutil.ToFloat64(requestCount.WithLabelValues("418", "GET", "own")), 0)
	assert.InDelta(t, 2, testutil.ToFloat64(requestCount.WithLabelValues("418", "GET", "other")), 0)
	problems, err := testutil.GatherAndLint(registry.(*prometheus.Registry), "rest_client_requests_total", "rest_client_request_duration_seconds")
	require.NoError(t, err)
	assert.Empty(t, problems)
}
