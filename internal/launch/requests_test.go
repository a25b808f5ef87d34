package launch

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

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
