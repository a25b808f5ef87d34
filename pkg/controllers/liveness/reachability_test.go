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
