package testenv

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	muster "github.com/muster-fleet/muster/pkg/hub"
)

// Wire is where the requests of one hub pass by: it remembers them, and it can do harm to them. Give Tap to Cluster.Hub.
type Wire struct {
	mu   sync.Mutex
	seen []string
	harm Harm
}

// Harm handles one request instead of just sending it, or sends it and spoils the answer.
type Harm func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error)

// Tap lets all requests of a hub pass by.
func (w *Wire) Tap(o *muster.Options) {
	o.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return tapped{w, next} })
}

// Inject does harm to every request from now on; nil ends it.
func (w *Wire) Inject(harm Harm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.harm = harm
}

// Seen is how many requests there were whose line "VERB PATH" contains part.
func (w *Wire) Seen(part string) int { return len(w.Lines(part)) }

// Lines are the requests whose line "VERB PATH" contains part, oldest first.
func (w *Wire) Lines(part string) (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.seen {
		if strings.Contains(line, part) {
			lines = append(lines, line)
		}
	}
	return lines
}

func (w *Wire) note(req *http.Request) Harm {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, req.Method+" "+req.URL.Path)
	return w.harm
}

type tapped struct {
	wire *Wire
	next http.RoundTripper
}

// RoundTrip notes the request and sends it, or leaves it to the harm.
func (t tapped) RoundTrip(req *http.Request) (*http.Response, error) {
	harm := t.wire.note(req)
	if harm == nil {
		return t.next.RoundTrip(req)
	}
	return harm(req, func() (*http.Response, error) { return t.next.RoundTrip(req) })
}

// WrappedRoundTripper lets client-go reach the transport, to close its connections.
func (t tapped) WrappedRoundTripper() http.RoundTripper { return t.next }

// IsWrite says whether a request changes something that matters: events are only for people, and dry runs change nothing.
func IsWrite(req *http.Request) bool {
	if req.Method == http.MethodGet || req.URL.Query().Has("dryRun") {
		return false
	}
	return !strings.HasSuffix(req.URL.Path, "/events") && !strings.Contains(req.URL.Path, "/events/")
}

// window is how long a hub is watched to tell a hot loop from a hub at rest.
const window = 3 * time.Second

// RequireQuiet watches for a while and fails if there are limit or more requests whose line contains any of the parts.
func (w *Wire) RequireQuiet(t testing.TB, limit int, parts ...string) {
	t.Helper()
	before := make([]int, len(parts))
	for i, part := range parts {
		before[i] = w.Seen(part)
	}
	<-time.NewTimer(window).C
	for i, part := range parts {
		lines := w.Lines(part)[before[i]:]
		require.Less(t, len(lines), limit, "requests within %s: %s", window, strings.Join(lines, "\n"))
	}
}
