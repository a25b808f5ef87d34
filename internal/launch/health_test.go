package launch

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func ask(t *testing.T, h *Health, path string) (int, string) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer.Code, answer.Body.String()
}

func TestHealthTellsTheKubeletWhatItNeeds(t *testing.T) {
	tests := map[string]struct {
		happened func(*Health)
		path     string
		code     int
		body     string
	}{
		"it lives from the start":          {func(*Health) {}, "/healthz", http.StatusOK, "ok\n"},
		"it lives while it waits":          {func(h *Health) { h.NotReady("waiting") }, "/healthz", http.StatusOK, "ok\n"},
		"it is not ready from the start":   {func(*Health) {}, "/readyz", http.StatusServiceUnavailable, "starting\n"},
		"ready":                            {func(h *Health) { h.Ready("at work") }, "/readyz", http.StatusOK, "ok\n"},
		"ready, in words":                  {func(h *Health) { h.Ready("at work") }, "/readyz?verbose", http.StatusOK, "at work\n"},
		"not ready says why without asked": {func(h *Health) { h.Ready("a"); h.NotReady("waiting") }, "/readyz", http.StatusServiceUnavailable, "waiting\n"},
		"ready again":                      {func(h *Health) { h.NotReady("a"); h.Ready("b") }, "/readyz?verbose", http.StatusOK, "b\n"},
		"nothing else is there":            {func(h *Health) { h.Ready("a") }, "/metrics", http.StatusNotFound, "404 page not found\n"},
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

func TestHealthIsServedWhereAskedForAndNowhereElse(t *testing.T) {
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
