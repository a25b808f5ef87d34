package liveness

import (
	"context"
	"errors"
	"net/http"
	"path"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/transport"
)

// APIReachability records since when heartbeats can arrive: since the start of the hub, or since the hub's API server, to which
// agents send them, became reachable again.
type APIReachability struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	since   time.Time
	failing sets.Set[string] // the resources of heartbeats whose last watch failed
}

// NewAPIReachability starts now.
func NewAPIReachability(c clock.PassiveClock) *APIReachability {
	return &APIReachability{clock: c, since: c.Now(), failing: sets.Set[string]{}}
}

// Since returns the time since which the API server is reachable, which is now while it is not.
func (r *APIReachability) Since() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failing.Len() > 0 {
		return r.clock.Now()
	}
	return r.since
}

// watched records whether the API server was reachable for a watch of the resource.
func (r *APIReachability) watched(resource string, reachable bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !reachable:
		r.failing.Insert(resource)
	case r.failing.Has(resource):
		r.failing.Delete(resource)
		r.since = r.clock.Now()
	}
}

// Wrap returns a transport that records the watches with which the hub receives heartbeats. Other requests do not count: one that fails now and
// then would keep every agent connected.
func (r *APIReachability) Wrap(next http.RoundTripper) http.RoundTripper {
	return transport.Sender(r.send).Wrap(next)
}

func (r *APIReachability) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	response, err := next.RoundTrip(req)
	if req.URL.Query().Get("watch") == "" {
		return response, err
	}
	switch resource := path.Base(req.URL.Path); resource {
	case "leases", "clusters", "managedclusters":
		switch failed := isUnreachable(req.Context(), response, err); {
		case failed:
			r.watched(resource, false)
		case err == nil && (response.StatusCode < http.StatusBadRequest || response.StatusCode == http.StatusNotFound || response.StatusCode == http.StatusGone):
			r.watched(resource, true)
		}
	}
	return response, err
}

// isUnreachable excludes requests that the hub cancelled and requests that the API server rejected: those do not end an outage either, unless the resource
// does not exist, or the watch has to begin again.
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
