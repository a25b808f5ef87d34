package launch

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProfilesAreServedWhereAskedForAndNowhereElse(t *testing.T) {
	require.NoError(t, Profiles(t.Context(), ""))
	address := unusedAddress(t)
	require.NoError(t, Profiles(t.Context(), address))
	for path, has := range map[string]string{
		"/debug/pprof/":                    "goroutine",
		"/debug/pprof/heap?debug=1":        "heap profile",
		"/debug/pprof/profile?seconds=1":   "",
		"/debug/pprof/goroutine?debug=1":   "TestProfilesAreServed",
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
