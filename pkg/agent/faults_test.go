package agent

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/transport"
)

// writeKiller kills an agent at its n-th write, before or after the write is carried out, and loses the later writes.
type writeKiller struct {
	at         int
	carriedOut bool
	kill       func()
	counts     func(*http.Request) bool // nil counts every write to a real API server

	mutex   sync.Mutex
	writes  int
	stopped bool
}

// lost counts a write, and reports whether it must not be carried out.
func (d *writeKiller) lost() bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.stopped {
		return false
	}
	d.writes++
	if d.writes == d.at {
		d.kill()
	}
	return d.writes > d.at || d.writes == d.at && !d.carriedOut
}

func (d *writeKiller) stop() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.stopped = true
}

// react counts the writes to a fake member.
func (d *writeKiller) react(action kubetesting.Action) (bool, runtime.Object, error) {
	if verb := action.GetVerb(); verb == "get" || verb == "list" || verb == "watch" {
		return false, nil, nil
	}
	return d.lost(), nil, apierrors.NewInternalError(assert.AnError)
}

// fault counts the writes to a stubHub.
func (d *writeKiller) fault(r *http.Request) (int, string) {
	if isWrite(r) && d.lost() {
		return http.StatusBadGateway, "<h1>502</h1>"
	}
	return 0, ""
}

// wrap counts the writes to a real API server.
func (d *writeKiller) wrap(next http.RoundTripper) http.RoundTripper {
	return transport.Sender(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if isWrite(r) && (d.counts == nil || d.counts(r)) && d.lost() {
			return nil, errors.New("the agent is killed")
		}
		return next.RoundTrip(r)
	}).Wrap(next)
}

func isWrite(r *http.Request) bool { return r.Method != http.MethodGet }

// killAtWrite runs the agent until it is killed at its n-th write, or the condition holds.
func (f *testAgent) killAtWrite(n int, carriedOut bool, condition func() bool) (killed bool) {
	f.Helper()
	ctx, kill := context.WithCancel(f.Context())
	killer := &writeKiller{at: n, kill: kill, carriedOut: carriedOut}
	f.core.PrependReactor("*", "*", killer.react)
	f.hub.set(func() { f.hub.fault = killer.fault })
	ended := make(chan struct{})
	go func() { defer close(ended); runLoop(ctx, f.config, f.member, deployNothing) }()
	f.eventually(func() bool { return ctx.Err() != nil || condition() }, "the agent is killed or the condition holds")
	killed = ctx.Err() != nil
	kill()
	<-ended
	killer.stop()
	return killed
}
