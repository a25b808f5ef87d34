package hub

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	bundlesURL  = "https://hub/apis/fleet.cattle.io/v1alpha1/bundles?resourceVersion=5&watch=true"
	clustersURL = "https://hub/apis/fleet.cattle.io/v1alpha1/clusters?watch=true"
)

// watcher runs the watches of a hub with a clock of the test.
type watcher struct {
	*watches
	clock   *clocktesting.FakeClock
	reports chan bool
}

func newWatcher(t *testing.T) *watcher {
	t.Helper()
	w := &watcher{clock: clocktesting.NewFakeClock(time.Unix(0, 0)), reports: make(chan bool, 10)}
	w.watches = newWatches(w.clock, func(watching bool) { w.reports <- watching })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.follow(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		assert.Empty(t, w.reports, "it reports each change once")
		assert.False(t, w.clock.HasWaiters(), "no timer is left")
	})
	return w
}

// answered sends a request that is answered with this code; 0 is an error of the network.
func (w *watcher) answered(t *testing.T, url string, code int) {
	t.Helper()
	next := transport.Sender(func(http.RoundTripper, *http.Request) (*http.Response, error) {
		if code == 0 {
			return nil, http.ErrServerClosed
		}
		return &http.Response{StatusCode: code, Body: http.NoBody}, nil
	}).Wrap(nil)
	response, err := w.send(next, httptest.NewRequest(http.MethodGet, url, http.NoBody))
	if code == 0 {
		require.ErrorIs(t, err, http.ErrServerClosed)
		return
	}
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}

// awaitTimer returns when follow has a timer, or has none.
func (w *watcher) awaitTimer(t *testing.T, want bool) {
	t.Helper()
	require.Eventually(t, func() bool { return w.clock.HasWaiters() == want }, 10*time.Second, time.Millisecond)
}

func TestWatches(t *testing.T) {
	t.Run("refused for a minute, then accepted", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.awaitTimer(t, true)
		w.clock.Step(refusedFor - time.Second)
		w.answered(t, bundlesURL, http.StatusUnauthorized) // it has been refused since the first answer
		assert.True(t, w.clock.HasWaiters())
		w.clock.Step(time.Second)
		assert.False(t, <-w.reports)
		w.awaitTimer(t, false)
		w.answered(t, clustersURL, http.StatusForbidden)
		w.answered(t, bundlesURL, http.StatusOK) // the other one is still refused
		texts, wait := w.overdue()
		assert.Empty(t, texts)
		assert.Equal(t, refusedFor, wait)
		w.answered(t, clustersURL, http.StatusOK)
		assert.True(t, <-w.reports)
	})
	t.Run("accepted within the minute", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusNotFound)
		w.awaitTimer(t, true)
		w.answered(t, bundlesURL, http.StatusOK)
		w.awaitTimer(t, false)
		w.clock.Step(2 * refusedFor)
	})
	t.Run("several", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.awaitTimer(t, true)
		w.answered(t, clustersURL, http.StatusNotFound)
		w.clock.Step(refusedFor)
		assert.False(t, <-w.reports)
		texts, _ := w.overdue()
		assert.Equal(t, []string{
			"/apis/fleet.cattle.io/v1alpha1/bundles (403 Forbidden)", "/apis/fleet.cattle.io/v1alpha1/clusters (404 Not Found)",
		}, texts)
	})
	t.Run("neither outages nor other requests count", func(t *testing.T) {
		w := newWatcher(t)
		for _, code := range []int{0, http.StatusGone, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
			w.answered(t, bundlesURL, code)
		}
		w.answered(t, "https://hub/apis/fleet.cattle.io/v1alpha1/bundles?limit=500", http.StatusForbidden)
		assert.Empty(t, w.refused)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.answered(t, bundlesURL, http.StatusServiceUnavailable)
		assert.Len(t, w.refused, 1, "an outage does not end it")
	})
}
