package hub

import (
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"
)

// refusedFor is the time for which the API server must refuse the requests of a cache before the hub reports it. It is longer than a short gap in the
// rights of the hub, for example while its ClusterRole is replaced. client-go waits for up to a minute between two attempts of a cache, so the report may
// come two minutes after the first refusal.
const refusedFor = time.Minute

// watches records which lists and watches of the hub's own caches the API server refuses. A cache whose requests are refused stays as it is. Outages do
// not count: they end by themselves.
type watches struct {
	clock clock.PassiveClock

	mu     sync.Mutex // is held while report is called, so that the calls are in order
	report func(watching bool)
	paths  map[string]*watchedPath // by the path of the URL; each kind in the caches has one
}

// watchedPath is the state of a path that a cache watches.
type watchedPath struct {
	since    time.Time // of the first refusal; zero if the path is not refused
	reported bool
}

func newWatches(c clock.PassiveClock, report func(watching bool)) *watches {
	return &watches{clock: c, report: report, paths: map[string]*watchedPath{}}
}

// send sends a request of a cache, and records the answer if it is a list or a watch. A request is a list if a cache has watched the same path
// before: the path of a single object, or of discovery, is never watched. A cache whose first list is refused is never filled, and the start of the hub fails.
func (w *watches) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	response, err := next.RoundTrip(req)
	if req.Method != http.MethodGet {
		return response, err
	}
	code := 0
	if err == nil {
		code = response.StatusCode
	}
	w.record(req.URL.Path, req.URL.Query().Get("watch") != "", code)
	return response, err
}

// record records the answer to a request; code is 0 if there is none. An accepted list says nothing about the right to watch.
func (w *watches) record(path string, isWatch bool, code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.paths[path]
	if p == nil {
		if !isWatch {
			return
		}
		p = &watchedPath{}
		w.paths[path] = p
	}
	switch {
	case code == 0, code >= http.StatusInternalServerError:
		if !p.reported {
			p.since = time.Time{}
		}
	case remedies[code] != "":
		w.refused(p, path, code)
	case isWatch && code < http.StatusMultipleChoices:
		w.accepted(p, path)
	}
}

// remedies has the codes of a refusal.
var remedies = map[int]string{
	http.StatusUnauthorized: "the API server does not accept the credential of the hub: renew its token or client certificate",
	http.StatusForbidden:    "restore the ClusterRole of the hub, for example with helm upgrade",
	http.StatusNotFound:     "the CustomResourceDefinition is missing: install it again, for example with the chart fleet-crd",
}

func (w *watches) refused(p *watchedPath, path string, code int) {
	now := w.clock.Now()
	if p.since.IsZero() {
		p.since = now
	}
	if p.reported || now.Sub(p.since) < refusedFor {
		return
	}
	logrus.Warnf("The API server refuses to let the hub watch %s (%d %s), so the hub does not notice changes there; %s", path, code, http.StatusText(code), remedies[code])
	isFirst := !w.anyReported()
	p.reported = true
	if isFirst {
		w.report(false)
	}
}

func (w *watches) accepted(p *watchedPath, path string) {
	wasReported := p.reported
	*p = watchedPath{}
	if !wasReported {
		return
	}
	logrus.Infof("The API server lets the hub watch %s again", path)
	if !w.anyReported() {
		w.report(true)
	}
}

func (w *watches) anyReported() bool {
	for _, p := range w.paths {
		if p.reported {
			return true
		}
	}
	return false
}

// stop returns when no call of report runs, and prevents further ones: a request of a cache may still be answered.
func (w *watches) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = func(bool) {}
}
