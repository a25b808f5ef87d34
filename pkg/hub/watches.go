package hub

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"
)

// refusedFor is the time for which the API server must refuse a watch before the hub reports it. It is longer than a short gap in the rights of
// the hub, for example while its ClusterRole is replaced, and than the pauses between the attempts of a cache.
const refusedFor = time.Minute

// watches records which watches of the hub's own caches the API server refuses. A cache that may list, but not watch, is filled once and then
// stays as it is. Outages do not count: they end by themselves.
type watches struct {
	clock   clock.WithTicker
	report  func(watching bool)
	changed chan struct{} // has room for one element

	mu      sync.Mutex
	refused map[string]refusedWatch // by the path of the URL
}

type refusedWatch struct {
	since time.Time
	code  int
}

func newWatches(c clock.WithTicker, report func(watching bool)) *watches {
	return &watches{clock: c, report: report, changed: make(chan struct{}, 1), refused: map[string]refusedWatch{}}
}

// send sends a request of a cache, and records whether the API server refuses it if it is a watch.
func (w *watches) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	response, err := next.RoundTrip(req)
	if err != nil || req.URL.Query().Get("watch") == "" {
		return response, err
	}
	switch code := response.StatusCode; {
	case code < http.StatusMultipleChoices:
		w.record(req.URL.Path, 0)
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusNotFound:
		w.record(req.URL.Path, code)
	}
	return response, nil
}

// record wakes follow when a watch is refused for the first time, or accepted again. code is 0 for an accepted watch.
func (w *watches) record(path string, code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, wasRefused := w.refused[path]
	switch {
	case code == 0:
		delete(w.refused, path)
	case wasRefused:
		w.refused[path] = refusedWatch{before.since, code}
	default:
		w.refused[path] = refusedWatch{w.clock.Now(), code}
	}
	if wasRefused != (code != 0) {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// follow reports, until ctx ends, when a watch has been refused for refusedFor, and when no watch is refused any more. It has a timer only
// while a watch is refused that is not reported yet.
func (w *watches) follow(ctx context.Context) {
	watching := true
	for {
		texts, wait := w.overdue()
		switch {
		case watching && len(texts) > 0:
			watching = false
			logrus.Warnf("The API server refuses watches, so the hub does not notice changes: %s; restore the ClusterRole of the hub, for example with helm upgrade",
				strings.Join(texts, ", "))
			w.report(false)
		case !watching && len(texts) == 0 && wait == 0:
			watching = true
			logrus.Info("The API server accepts all watches of the hub again")
			w.report(true)
		}
		var due <-chan time.Time
		stop := func() bool { return false }
		if watching && wait > 0 {
			timer := w.clock.NewTimer(wait)
			due, stop = timer.C(), timer.Stop
		}
		select {
		case <-ctx.Done():
		case <-w.changed:
		case <-due:
		}
		stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// overdue describes the watches that have been refused for refusedFor, in order of their paths, and returns the time until the next one has;
// 0 if there is none.
func (w *watches) overdue() (texts []string, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	for _, path := range slices.Sorted(maps.Keys(w.refused)) {
		r := w.refused[path]
		left := r.since.Add(refusedFor).Sub(now)
		switch {
		case left <= 0:
			texts = append(texts, fmt.Sprintf("%s (%d %s)", path, r.code, http.StatusText(r.code)))
		case wait == 0 || left < wait:
			wait = left
		}
	}
	return texts, wait
}
