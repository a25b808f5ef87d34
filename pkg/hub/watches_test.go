package hub

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	bundlesURL  = "https://hub/apis/fleet.cattle.io/v1alpha1/bundles?resourceVersion=5&watch=true"
	listURL     = "https://hub/apis/fleet.cattle.io/v1alpha1/bundles?limit=500"
	clustersURL = "https://hub/apis/fleet.cattle.io/v1alpha1/clusters?watch=true"
	oneURL      = "https://hub/apis/fleet.cattle.io/v1alpha1/namespaces/ws/bundles/app"

	bundlesRefused  = "warning: The API server refuses to let the hub watch /apis/fleet.cattle.io/v1alpha1/bundles (403 Forbidden), so the hub does not notice changes there; restore the ClusterRole of the hub, for example with helm upgrade"
	clustersRefused = "warning: The API server refuses to let the hub watch /apis/fleet.cattle.io/v1alpha1/clusters (404 Not Found), so the hub does not notice changes there; the CustomResourceDefinition is missing: install it again, for example with the chart fleet-crd"
	bundlesAgain    = "info: The API server lets the hub watch /apis/fleet.cattle.io/v1alpha1/bundles again"
	clustersAgain   = "info: The API server lets the hub watch /apis/fleet.cattle.io/v1alpha1/clusters again"
)

// watcher is the transport of caches with a clock of the test.
type watcher struct {
	*watches
	clock   *clocktesting.FakeClock
	reports []bool
	log     *logtest.Hook
}

func newWatcher(t *testing.T) *watcher {
	t.Helper()
	hooks := logrus.StandardLogger().ReplaceHooks(logrus.LevelHooks{})
	t.Cleanup(func() { logrus.StandardLogger().ReplaceHooks(hooks) })
	w := &watcher{clock: clocktesting.NewFakeClock(time.Unix(0, 0)), log: logtest.NewGlobal()}
	w.watches = newWatches(w.clock, func(watching bool) { w.reports = append(w.reports, watching) })
	return w
}

// answered sends a request that is answered with this code; 0 is an error of the network.
func (w *watcher) answered(t *testing.T, url string, code int) {
	t.Helper()
	w.sent(t, http.MethodGet, url, code)
}

func (w *watcher) sent(t *testing.T, method, url string, code int) {
	t.Helper()
	next := transport.Sender(func(http.RoundTripper, *http.Request) (*http.Response, error) {
		if code == 0 {
			return nil, http.ErrServerClosed
		}
		return &http.Response{StatusCode: code, Body: http.NoBody}, nil
	}).Wrap(nil)
	response, err := w.send(next, httptest.NewRequest(method, url, http.NoBody))
	if code == 0 {
		require.ErrorIs(t, err, http.ErrServerClosed)
		return
	}
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
}

// requireNew compares what was reported and logged since the last call.
func (w *watcher) requireNew(t *testing.T, reports []bool, logged ...string) {
	t.Helper()
	assert.Equal(t, reports, w.reports)
	var lines []string
	for _, entry := range w.log.AllEntries() {
		lines = append(lines, entry.Level.String()+": "+entry.Message)
	}
	assert.Equal(t, logged, lines)
	w.reports = nil
	w.log.Reset()
}

func TestWatches(t *testing.T) {
	t.Run("refused for a minute, then accepted", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusUnauthorized)
		w.clock.Step(refusedFor - time.Second)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.clock.Step(time.Second)
		w.requireNew(t, nil)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.requireNew(t, []bool{false}, bundlesRefused)
		w.clock.Step(refusedFor)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.requireNew(t, nil)
		for _, code := range []int{0, http.StatusServiceUnavailable} {
			w.answered(t, bundlesURL, code) // an outage does not say that the watch is accepted again
		}
		w.requireNew(t, nil)
		w.answered(t, bundlesURL, http.StatusOK)
		w.requireNew(t, []bool{true}, bundlesAgain)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.requireNew(t, nil)
	})
	t.Run("accepted within the minute", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusNotFound)
		w.answered(t, bundlesURL, http.StatusOK)
		w.clock.Step(refusedFor)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.requireNew(t, nil)
	})
	t.Run("several: each is logged, and the last one ends it", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.clock.Step(refusedFor)
		w.answered(t, clustersURL, http.StatusNotFound)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.requireNew(t, []bool{false}, bundlesRefused)
		w.clock.Step(refusedFor)
		w.answered(t, clustersURL, http.StatusNotFound)
		w.requireNew(t, nil, clustersRefused)
		w.answered(t, bundlesURL, http.StatusOK)
		w.requireNew(t, nil, bundlesAgain)
		w.answered(t, clustersURL, http.StatusOK)
		w.requireNew(t, []bool{true}, clustersAgain)
	})
	t.Run("the credential is not accepted", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusUnauthorized)
		w.clock.Step(refusedFor)
		w.answered(t, bundlesURL, http.StatusUnauthorized)
		w.requireNew(t, []bool{false}, "warning: The API server refuses to let the hub watch /apis/fleet.cattle.io/v1alpha1/bundles (401 Unauthorized), "+
			"so the hub does not notice changes there; the API server does not accept the credential of the hub: renew its token or client certificate")
	})
	t.Run("a refused list counts, an accepted one does not", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusOK)
		w.answered(t, listURL, http.StatusForbidden)
		w.clock.Step(refusedFor)
		w.answered(t, listURL, http.StatusOK)
		w.answered(t, listURL, http.StatusForbidden)
		w.requireNew(t, []bool{false}, bundlesRefused)
		w.answered(t, listURL, http.StatusOK)
		w.requireNew(t, nil)
	})
	for _, code := range []int{0, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		t.Run("outage after one refusal: "+http.StatusText(code), func(t *testing.T) {
			w := newWatcher(t)
			w.answered(t, bundlesURL, http.StatusForbidden)
			w.answered(t, bundlesURL, code)
			w.clock.Step(refusedFor)
			w.answered(t, bundlesURL, http.StatusForbidden)
			w.requireNew(t, nil)
			w.clock.Step(refusedFor)
			w.answered(t, bundlesURL, http.StatusForbidden)
			w.requireNew(t, []bool{false}, bundlesRefused)
		})
	}
	t.Run("other answers and other requests do not count", func(t *testing.T) {
		w := newWatcher(t)
		send := func() {
			for _, code := range []int{0, http.StatusGone, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
				w.answered(t, clustersURL, code)
			}
			w.answered(t, listURL, http.StatusForbidden) // no cache watches this path
			w.answered(t, oneURL, http.StatusNotFound)
			w.sent(t, http.MethodPost, clustersURL, http.StatusForbidden)
		}
		send()
		w.clock.Step(refusedFor)
		send()
		w.requireNew(t, nil)
	})
	t.Run("no report after stop", func(t *testing.T) {
		w := newWatcher(t)
		w.answered(t, bundlesURL, http.StatusForbidden)
		w.clock.Step(refusedFor)
		w.stop()
		w.answered(t, bundlesURL, http.StatusForbidden)
		assert.Empty(t, w.reports)
	})
}
