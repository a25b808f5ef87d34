package liveness

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Audible knows since when the hub can hear of heartbeats: since its start, or since its own API server came back, to which
// agents send them.
type Audible struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	since time.Time
}

// NewAudible begins now.
func NewAudible(c clock.PassiveClock) *Audible { return &Audible{clock: c, since: c.Now()} }

// Since is the moment.
func (a *Audible) Since() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since
}

func (a *Audible) deaf() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.since = a.clock.Now()
}

// Wrap notes the watches of the hub's own clients that fail; while the API server is away, one of them tries again all the
// time. Other requests do not count: a single one may fail for reasons of its own.
func (a *Audible) Wrap(next http.RoundTripper) http.RoundTripper { return hearing{a, next} }

type hearing struct {
	audible *Audible
	next    http.RoundTripper
}

// RoundTrip sends the request.
func (h hearing) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := h.next.RoundTrip(req)
	if req.URL.Query().Get("watch") != "" && failed(req.Context(), response, err) {
		h.audible.deaf()
	}
	return response, err
}

// WrappedRoundTripper lets client-go reach the transport, to close its connections.
func (h hearing) WrappedRoundTripper() http.RoundTripper { return h.next }

// failed leaves out what the hub gave up itself, and what the API server refuses while it works.
func failed(ctx context.Context, response *http.Response, err error) bool {
	if err != nil {
		return ctx.Err() == nil && !errors.Is(err, context.Canceled)
	}
	switch response.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
