package testenv

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	muster "github.com/muster-fleet/muster/pkg/hub"
)

// Recorder notes every request a hub sends to its API server.
type Recorder struct {
	mu    sync.Mutex
	sent  []Sent
	under int       // requests without an answer yet
	last  time.Time // something was sent or answered
}

// Sent is one request that is no watch.
type Sent struct {
	Method, Path string
	Code         int  // 0 when there was no answer
	DryRun       bool // the API server was asked to change nothing
}

func (s Sent) String() string { return fmt.Sprintf("%s %s -> %d", s.Method, s.Path, s.Code) }

// IsWrite says whether the request may have changed something.
func (s Sent) IsWrite() bool { return s.Method != http.MethodGet && !s.DryRun }

// Wrap is for Cluster.Hub: it lets the recorder see the requests of that hub.
func (r *Recorder) Wrap(o *muster.Options) {
	cfg := rest.CopyConfig(o.RESTConfig)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return recording{next, r} })
	o.RESTConfig = cfg
}

type recording struct {
	http.RoundTripper
	recorder *Recorder
}

func (r recording) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Query().Get("watch") != "" {
		return r.RoundTripper.RoundTrip(request)
	}
	r.recorder.begin()
	s := Sent{Method: request.Method, Path: request.URL.Path, DryRun: request.URL.Query().Has("dryRun")}
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil {
		s.Code = response.StatusCode
	}
	r.recorder.end(s)
	return response, err
}

func (r *Recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.under++
	r.last = time.Now()
}

func (r *Recorder) end(s Sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.under--
	r.sent = append(r.sent, s)
	r.last = time.Now()
}

// Settle waits until the hub has been silent for a while, and returns and forgets what it sent until then. The while is
// longer than any delay after which a hub looks at something again by itself.
func (r *Recorder) Settle(t testing.TB) []Sent {
	t.Helper()
	const silence = 4 * time.Second
	Eventually(t, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.under == 0 && time.Since(r.last) > silence, fmt.Sprintf("the hub does not come to rest; %d requests are under way", r.under)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.sent
	r.sent = nil
	return all
}

// WritesIn are the requests that may have changed something.
func WritesIn(all []Sent) []Sent {
	return slices.DeleteFunc(slices.Clone(all), func(s Sent) bool { return !s.IsWrite() })
}

// Bill is what something cost, by kind of request.
func Bill(all []Sent) map[string]int {
	lines := map[string]int{}
	for _, s := range all {
		parts := strings.Split(strings.Trim(s.Path, "/"), "/")
		kind := parts[len(parts)-1]
		for _, resource := range []string{
			"clusterrolebindings", "rolebindings", "roles", "token", "serviceaccounts", "secrets", "events",
			"clusterregistrationtokens", "clusterregistrations", "clusters", "bundledeployments", "bundles", "namespaces",
		} {
			if slices.Contains(parts, resource) {
				kind = resource
				break
			}
		}
		if parts[len(parts)-1] == "status" {
			kind += "/status"
		}
		lines[fmt.Sprintf("%s %s %dxx", s.Method, kind, s.Code/100)]++
	}
	return lines
}

// Totals counts writes and reads, and how many of both were refused.
func Totals(all []Sent) (writes, reads, failures int) {
	for _, s := range all {
		switch {
		case s.IsWrite():
			writes++
		default:
			reads++
		}
		if s.Code >= http.StatusBadRequest {
			failures++
		}
	}
	return writes, reads, failures
}
