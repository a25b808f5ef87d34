package testenv

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Recorder records the requests of a hub or agent, and can make them fail. Pass Wrap to Cluster.Hub.
type Recorder struct {
	mu      sync.Mutex
	sent    []*Sent
	pending int       // requests without a response, not counting watches
	last    time.Time // of the last request or response
	silence time.Duration
	harm    Harm
}

// Sent is a request.
type Sent struct {
	Method, Path string
	Code         int // 0 without a response
	DryRun       bool
	watch        bool
}

func (s Sent) String() string { return fmt.Sprintf("%s %s -> %d", s.Method, s.Path, s.Code) }

// IsWrite returns whether the request may have changed an object.
func (s Sent) IsWrite() bool { return s.Method != http.MethodGet && !s.DryRun }

// IsWrite returns whether a request may change an object other than an event.
func IsWrite(req *http.Request) bool {
	if req.Method == http.MethodGet || req.URL.Query().Has("dryRun") {
		return false
	}
	return !strings.HasSuffix(req.URL.Path, "/events") && !strings.Contains(req.URL.Path, "/events/")
}

// Harm handles a request in place of the transport. It can call send, and change the response.
type Harm func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error)

// Inject passes all requests from now on to harm; nil ends that.
func (r *Recorder) Inject(harm Harm) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.harm = harm
}

// Wrap lets the requests of a hub pass through the recorder. Options for the delays of the hub precede it.
func (r *Recorder) Wrap(o *muster.Options) {
	r.silence = 3 * cmp.Or(o.Delays.Repair, app.DefaultRepairDelay) / 2
	o.RESTConfig = r.On(o.RESTConfig)
}

// On returns a configuration whose requests pass through the recorder.
func (r *Recorder) On(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(transport.Sender(r.send).Wrap)
	return config
}

// Requests returns the requests since the last call of Settle, as "METHOD PATH", that contain a text.
func (r *Recorder) Requests(part string) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sent {
		if line := s.Method + " " + s.Path; strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return found
}

// send records the request and sends it.
func (r *Recorder) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	s := &Sent{Method: req.Method, Path: req.URL.Path, DryRun: query.Has("dryRun"), watch: query.Get("watch") != ""}
	harm := r.begin(s)
	send := func() (*http.Response, error) { return next.RoundTrip(req) }
	if harm == nil {
		harm = func(*http.Request, func() (*http.Response, error)) (*http.Response, error) { return send() }
	}
	response, err := harm(req, send)
	r.end(s, response)
	return response, err
}

func (r *Recorder) begin(s *Sent) Harm {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, s)
	if !s.watch {
		r.pending++
		r.last = time.Now()
	}
	return r.harm
}

func (r *Recorder) end(s *Sent, response *http.Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if response != nil {
		s.Code = response.StatusCode
	}
	if !s.watch {
		r.pending--
		r.last = time.Now()
	}
}

// Settle waits until the hub has sent nothing for longer than any delay after which it reconciles an object again, and at least a second. It returns
// the requests since the last call, without watches.
func (r *Recorder) Settle(t testing.TB) (all []Sent) {
	t.Helper()
	silence := max(time.Second, r.silence)
	Eventually(t, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.pending == 0 && time.Since(r.last) > silence, fmt.Sprintf("the hub still sends requests; %d are pending", r.pending)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sent {
		if !s.watch {
			all = append(all, *s)
		}
	}
	r.sent = nil
	return all
}

// RequireQuiet fails if the hub sends limit or more requests within 3 seconds whose "METHOD PATH" contains one of the parts.
func (r *Recorder) RequireQuiet(t testing.TB, limit int, parts ...string) {
	t.Helper()
	const window = 3 * time.Second
	before := map[string]int{}
	for _, part := range parts {
		before[part] = len(r.Requests(part))
	}
	<-time.NewTimer(window).C
	for _, part := range parts {
		lines := r.Requests(part)[before[part]:]
		require.Less(t, len(lines), limit, "requests within %s: %s", window, strings.Join(lines, "\n"))
	}
}

// WritesIn are the requests that may have changed an object.
func WritesIn(all []Sent) []Sent {
	return slices.DeleteFunc(slices.Clone(all), func(s Sent) bool { return !s.IsWrite() })
}

// Bill counts requests by method, resource and class of the status code.
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

// Totals counts writes, reads, and the refused requests among them.
func Totals(all []Sent) (writes, reads, failures int) {
	for _, s := range all {
		if s.IsWrite() {
			writes++
		} else {
			reads++
		}
		if s.Code >= http.StatusBadRequest {
			failures++
		}
	}
	return writes, reads, failures
}
