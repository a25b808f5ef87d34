package hub

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/muster-fleet/muster/pkg/leader"
)

// errFenced is the error of a write that a hub without its Lease tries to send.
var errFenced = errors.New("this hub has lost its Lease and writes nothing any more")

// fence refuses every write of a hub that has lost its Lease. A handler that is delayed between two writes must not send the
// second one while the next hub works. An orderly stop refuses nothing: the hub keeps the Lease until its handlers have returned.
type fence struct {
	term atomic.Pointer[context.Context]
}

// guard refuses writes after term has ended with leader.ErrLost as its cause.
func (f *fence) guard(term context.Context) { f.term.Store(&term) }

func (f *fence) closed() bool {
	term := f.term.Load()
	return term != nil && errors.Is(context.Cause(*term), leader.ErrLost)
}

// wrap is for the configuration of the hub's clients.
func (f *fence) wrap(next http.RoundTripper) http.RoundTripper { return fenced{f, next} }

type fenced struct {
	fence *fence
	next  http.RoundTripper
}

// RoundTrip sends the request unless it is a write and the Lease is lost.
func (f fenced) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet && f.fence.closed() {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errFenced
	}
	return f.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go reach the transport, to close its connections.
func (f fenced) WrappedRoundTripper() http.RoundTripper { return f.next }
