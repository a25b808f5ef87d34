package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Blow is a fault at a write of a hub.
type Blow string

const (
	// Kill ends the hub after the write: no later request is sent, and a new hub is started.
	Kill Blow = "killed after"
	// Fail responds with a server error and does not send the write.
	Fail Blow = "error 500 instead of"
	// Drop sends the write and drops the response.
	Drop Blow = "answer lost of"
)

// supervised is a hub that is started again after it was killed, as a kubelet does with a container.
type supervised struct {
	options muster.Options
	over    context.Context
	ready   chan struct{} // closed when the first hub is ready

	mu     sync.Mutex
	blow   Blow
	at     int // the number of the write that the fault applies to
	writes int
	struck string
	starts int
}

// supervisedHub runs a hub until the test ends, and returns when it is ready.
func (c *Cluster) supervisedHub(t testing.TB, change ...func(*muster.Options)) *supervised {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &supervised{over: ctx, ready: make(chan struct{}), options: muster.Options{
		DisableBootstrap: true,
		ImportBackoff:    app.Backoff{Base: 100 * time.Millisecond, Max: time.Second},
		Recheck:          time.Second,
		Delays:           ShortDelays,
	}}
	for _, f := range change {
		f(&s.options)
	}
	s.options.OnReady = sync.OnceFunc(func() { close(s.ready) })
	ended := make(chan error, 1)
	go func() { ended <- s.supervise(c) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	select {
	case <-s.ready:
	case <-time.After(Patience):
		t.Fatal("the hub was not ready in time")
	}
	if !s.options.LeaveAdmission {
		c.AwaitAdmission(t)
	}
	return s
}

// supervise runs one hub after the other. A hub that is killed during its start may return an error.
func (s *supervised) supervise(c *Cluster) error {
	for s.over.Err() == nil {
		s.mu.Lock()
		s.starts++
		s.mu.Unlock()
		ctx, die := context.WithCancelCause(s.over)
		o := s.options
		o.RESTConfig = c.RESTConfig()
		o.RESTConfig.Wrap(transport.Sender(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
			return s.send(ctx, die, next, req)
		}).Wrap)
		err := muster.Run(ctx, o)
		killed := ctx.Err() != nil
		die(nil)
		if !killed {
			return fmt.Errorf("the hub ended by itself: %w", err)
		}
	}
	return nil
}

// strike applies the fault to the n-th write from now on.
func (s *supervised) strike(blow Blow, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blow, s.at, s.writes, s.struck = blow, n, 0, ""
}

// writeCount is the number of writes since the last call of strike.
func (s *supervised) writeCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// hit returns the write that the fault was applied to, or "".
func (s *supervised) hit() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.struck
}

// startCount is the number of starts of the hub.
func (s *supervised) startCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starts
}

// due returns the fault for a request, or "".
func (s *supervised) due(req *http.Request) Blow {
	if !IsWrite(req) {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.writes != s.at {
		return ""
	}
	s.struck = req.Method + " " + req.URL.Path
	return s.blow
}

var errKilled = errors.New("this hub was killed")

// send sends a request of the hub with the context alive, unless the hub was killed or a fault is due. After the hub was killed it sends
// nothing, although some goroutines of the hub still run.
func (s *supervised) send(alive context.Context, die context.CancelCauseFunc, next http.RoundTripper, req *http.Request) (*http.Response, error) {
	if errors.Is(context.Cause(alive), errKilled) {
		return nil, errKilled
	}
	switch s.due(req) {
	case Fail:
		return serverError(req), nil
	case Drop:
		response, err := next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		_ = response.Body.Close()
		return nil, io.ErrUnexpectedEOF
	case Kill:
		response, err := next.RoundTrip(req)
		die(errKilled)
		return response, err
	}
	return next.RoundTrip(req)
}

func serverError(req *http.Request) *http.Response {
	const body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500,"message":"a fault of the test"}`
	return &http.Response{
		Status: "500 Internal Server Error", StatusCode: http.StatusInternalServerError,
		Proto: req.Proto, ProtoMajor: req.ProtoMajor, ProtoMinor: req.ProtoMinor,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(body))), Request: req,
	}
}
