package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/hub"
)

// A standby and a leader are not ready while the API server refuses their watches. The body names no resource.
func TestRunHub_watching(t *testing.T) {
	health := launch.NewHealth()
	requireReady := func(code int, body string) {
		t.Helper()
		response := httptest.NewRecorder()
		health.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/readyz?verbose", http.NoBody))
		assert.Equal(t, code, response.Code)
		assert.Equal(t, body+"\n", response.Body.String())
	}
	require.NoError(t, runHub(t.Context(), config{}, health, func(_ context.Context, o hub.Options) error {
		o.OnStandby()
		requireReady(http.StatusOK, "standing by: another hub holds the Lease; the caches are filled")
		o.OnWatching(false)
		requireReady(http.StatusServiceUnavailable, "the API server refuses watches")
		o.OnElected()
		requireReady(http.StatusServiceUnavailable, "filling the caches")
		o.OnReady()
		requireReady(http.StatusServiceUnavailable, "the API server refuses watches")
		o.OnWatching(true)
		requireReady(http.StatusOK, "at work")
		return nil
	}))
}
