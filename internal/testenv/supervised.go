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
)

// Blow is what happens to a hub at one of its writes.
type Blow string

const (
	// Kill ends the hub right after the write went through: none of its later requests is sent. A fresh one is started.
	Kill Blow = "killed after"
	// Fail answers the write with an error of the server, without sending it.
	Fail Blow = "error 500 instead of"
	// Drop sends the write and drops the answer.
	Drop Blow = "answer lost of"
)

// Supervised is a hub that is started again whenever it was killed, as a kubelet does with a container.
type Supervised struct {
	options muster.Options
	over    context.Context
	ready   chan struct{} // closed when the first life is at work

	mu        sync.Mutex
	blow      Blow
	countdown int
	struck    string
	starts    int
}

// SupervisedHub runs a hub until the test ends, and returns when it is at work.
func (c *Cluster) SupervisedHub(t testing.TB, change ...func(*muster.Options)) *Supervised {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &Supervised{over: ctx, ready: make(chan struct{}), options: muster.Options{
		DisableBootstrap: true,
		ImportBackoff:    app.Backoff{Base: 100 * time.Millisecond, Max: time.Second},
		Recheck:          time.Second,
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

func (s *Supervised) supervise(c *Cluster) error {
	for s.over.Err() == nil {
		if err := s.live(c); err != nil {
			return err
		}
	}
	return nil
}

// live is one life of the hub. A hub that is killed while it starts may say so in an error.
func (s *Supervised) live(c *Cluster) error {
	ctx, die := context.WithCancel(s.over)
	defer die()
	l := &life{hub: s, die: die}
	o := s.options
	o.RESTConfig = c.RESTConfig()
	o.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return mortal{l, next} })
	s.mu.Lock()
	s.starts++
	s.mu.Unlock()
	err := muster.Run(ctx, o)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the hub ended by itself: %w", err)
}

// Strike deals the blow to the n-th write from now on.
func (s *Supervised) Strike(blow Blow, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blow, s.countdown, s.struck = blow, n, ""
}

// Struck is the write that got the blow, "" while none did.
func (s *Supervised) Struck() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.struck
}

// Starts is how often the hub was started.
func (s *Supervised) Starts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starts
}

// due says which blow a request gets; none is "".
func (s *Supervised) due(req *http.Request) Blow {
	if !IsWrite(req) {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.countdown--
	if s.countdown != 0 {
		return ""
	}
	s.struck = req.Method + " " + req.URL.Path
	return s.blow
}

// life is one process, as it were: once dead it sends nothing more, whatever of it still runs.
type life struct {
	hub *Supervised
	die context.CancelFunc

	mu   sync.Mutex
	dead bool
}

var errKilled = errors.New("this hub was killed")

func (l *life) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

func (l *life) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	l.die()
}

type mortal struct {
	life *life
	next http.RoundTripper
}

// RoundTrip sends the request, unless the hub is dead or a blow is due.
func (m mortal) RoundTrip(req *http.Request) (*http.Response, error) {
	if m.life.isDead() {
		return nil, errKilled
	}
	switch m.life.hub.due(req) {
	case Fail:
		return serverError(req), nil
	case Drop:
		return nil, loseAnswer(m.next.RoundTrip(req))
	case Kill:
		answer, err := m.next.RoundTrip(req)
		m.life.kill()
		return answer, err
	}
	return m.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go reach the transport, to close its connections.
func (m mortal) WrappedRoundTripper() http.RoundTripper { return m.next }

func loseAnswer(answer *http.Response, err error) error {
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	return io.ErrUnexpectedEOF
}

func serverError(req *http.Request) *http.Response {
	const body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500,"message":"etcd has a bad day"}`
	return &http.Response{
		Status: "500 Internal Server Error", StatusCode: http.StatusInternalServerError,
		Proto: req.Proto, ProtoMajor: req.ProtoMajor, ProtoMinor: req.ProtoMinor,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(body))), Request: req,
	}
}
