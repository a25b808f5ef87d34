package liveness

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/transport"
)

// APIReachability records since when heartbeats can arrive: since the start of the hub, or since the hub's API server, to which
// agents send them, became reachable again.
type APIReachability struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	since time.Time
}

// NewAPIReachability starts now.
func NewAPIReachability(c clock.PassiveClock) *APIReachability {
	return &APIReachability{clock: c, since: c.Now()}
}

// Since returns the time since which the API server is reachable.
func (r *APIReachability) Since() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since
}

// unreachable records that the API server is not reachable now.
func (r *APIReachability) unreachable() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = r.clock.Now()
}

// Wrap returns a transport that records failed watches of the hub's own clients. While the API server is not reachable, some watch is
// retried all the time. Other requests may fail for other reasons and do not count.
func (r *APIReachability) Wrap(next http.RoundTripper) http.RoundTripper {
	return transport.Sender(r.send).Wrap(next)
}

func (r *APIReachability) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	response, err := next.RoundTrip(req)
	if req.URL.Query().Get("watch") != "" && isUnreachable(req.Context(), response, err) {
		r.unreachable()
	}
	return response, err
}

// isUnreachable excludes requests that the hub cancelled and requests that the API server rejected.
func isUnreachable(ctx context.Context, response *http.Response, err error) bool {
	if err != nil {
		return ctx.Err() == nil && !errors.Is(err, context.Canceled)
	}
	switch response.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
