package liveness

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

type answer func(*http.Request) (*http.Response, error)

func (a answer) RoundTrip(req *http.Request) (*http.Response, error) { return a(req) }

func code(status int) answer {
	return func(*http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		recorder.WriteHeader(status)
		return recorder.Result(), nil
	}
}

func breaks(err error) answer {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func TestAPIReachability(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	refused := errors.New("connection refused")
	for _, row := range []struct {
		name   string
		ctx    context.Context
		url    string
		answer answer
		lost   bool
	}{
		{"a watch that works", t.Context(), "/clusters?watch=true", code(http.StatusOK), false},
		{"a watch that breaks", t.Context(), "/clusters?watch=true", breaks(refused), true},
		{"a proxy without a server", t.Context(), "/clusters?watch=true", code(http.StatusBadGateway), true},
		{"a server that starts", t.Context(), "/clusters?watch=true", code(http.StatusServiceUnavailable), true},
		{"a watch that is refused", t.Context(), "/clusters?watch=true", code(http.StatusForbidden), false},
		{"a watch that is too old", t.Context(), "/clusters?watch=true", code(http.StatusGone), false},
		{"a watch that the hub ended", ended, "/clusters?watch=true", breaks(refused), false},
		{"a cancelled watch", t.Context(), "/clusters?watch=true", breaks(context.Canceled), false},
		{"another request that breaks", t.Context(), "/clusters", breaks(refused), false},
		{"a watch of Leases", t.Context(), "/apis/coordination.k8s.io/v1/leases?watch=true", code(http.StatusServiceUnavailable), true},
		{"a watch that receives no heartbeats", t.Context(), "/apis/fleet.cattle.io/v1alpha1/bundles?watch=true", code(http.StatusServiceUnavailable), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(noon)
			a := NewAPIReachability(clock)
			clock.Step(time.Hour)
			req := httptest.NewRequestWithContext(row.ctx, http.MethodGet, row.url, nil)
			response, err := a.Wrap(row.answer).RoundTrip(req)
			if err == nil {
				require.NoError(t, response.Body.Close())
			}
			want := noon
			if row.lost {
				want = noon.Add(time.Hour)
			}
			assert.Equal(t, want, a.Since())
		})
	}
}

// The watches of the two kinds are retried independently of each other, with pauses of up to a minute.
func TestAPIReachability_again(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	a := NewAPIReachability(clock)
	watch := func(kind string, answer answer) {
		t.Helper()
		clock.Step(time.Minute)
		response, err := a.Wrap(answer).RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+kind+"?watch=true", nil))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}
	watch("leases", code(http.StatusBadGateway))
	watch("clusters", code(http.StatusBadGateway))
	watch("leases", code(http.StatusOK))
	clock.Step(time.Minute)
	assert.Equal(t, clock.Now(), a.Since(), "the other one still fails")
	watch("clusters", code(http.StatusTooManyRequests))
	watch("clusters", code(http.StatusInternalServerError))
	assert.Equal(t, clock.Now(), a.Since(), "a refused watch receives no heartbeats either")
	watch("clusters", code(http.StatusGone))
	since := clock.Now()
	watch("clusters", code(http.StatusOK))
	watch("leases", code(http.StatusOK))
	assert.Equal(t, since, a.Since())
}
