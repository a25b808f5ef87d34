package agent

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/leader"
)

// elects configures times with which no agent loses its Lease on a slow machine.
func (w *world) elects(identity string) Config {
	w.Helper()
	return w.electsWith(identity, leader.Times{LeaseDuration: 2 * patience, RenewDeadline: patience, RetryPeriod: 200 * time.Millisecond})
}

func (w *world) electsWith(identity string, times leader.Times) Config {
	w.Helper()
	c := w.config
	c.LeaderElection = &LeaderElection{Identity: identity, Times: times}
	return must(c.withDefaults())
}

func (w *world) lease() *coordinationv1.Lease {
	w.Helper()
	lease, err := w.member.CoordinationV1().Leases(w.config.Namespace).Get(context.Background(), "fleet-agent", metav1.GetOptions{})
	require.NoError(w, err)
	return lease
}

// worker works until its context ends, and signals its begin and end.
type worker struct{ began, ended chan struct{} }

func newWorker() *worker { return &worker{make(chan struct{}), make(chan struct{})} }

func (k *worker) work(ctx context.Context) error {
	close(k.began)
	<-ctx.Done()
	close(k.ended)
	return nil
}

func TestLeadOneAgentAtATime(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := newWorker(), newWorker()
	firstEnd, secondEnd := make(chan error, 1), make(chan error, 1)
	go func() { firstEnd <- lead(ctx, w.elects("first"), first.work) }()
	<-first.began
	assert.Equal(t, "first", *w.lease().Spec.HolderIdentity)

	secondCtx, stopSecond := context.WithCancel(t.Context())
	states := make(chan string, 100)
	waiting := w.elects("second")
	waiting.OnState = func(state string) { states <- state }
	go func() { secondEnd <- lead(secondCtx, waiting, second.work) }()
	assert.Equal(t, "standing by: another agent of this namespace holds the Lease", <-states)
	cancel()
	require.NoError(t, <-firstEnd)
	<-first.ended
	select {
	case <-second.began:
	case <-testClock.NewTimer(patience).C():
		t.Fatal("the second agent never had its turn")
	}
	stopSecond()
	require.NoError(t, <-secondEnd)
	assert.Empty(t, *w.lease().Spec.HolderIdentity, "released")
}

// The retry period is an hour: an agent that only polls would not get the Lease.
func TestLeadTakesOverAReleasedLeaseAtOnce(t *testing.T) {
	w := newWorld(t)
	patient := func(identity string) Config {
		return w.electsWith(identity, leader.Times{LeaseDuration: 3 * time.Hour, RenewDeadline: 2 * time.Hour, RetryPeriod: time.Hour})
	}
	first, second := newWorker(), newWorker()
	ended := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- lead(ctx, patient("first"), first.work) }()
	<-first.began
	var asked, watched atomic.Bool
	w.memberFront.set(func(r *http.Request) (int, string) {
		asked.Store(asked.Load() || strings.HasSuffix(r.URL.Path, "/leases/fleet-agent"))
		watched.Store(watched.Load() || r.URL.Query().Has("watch"))
		return 0, ""
	}, nil)
	secondCtx, stop := context.WithCancel(t.Context())
	go func() { ended <- lead(secondCtx, patient("second"), second.work) }()
	require.Eventually(t, func() bool { return asked.Load() && watched.Load() }, patience, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	select {
	case <-second.began:
	case <-testClock.NewTimer(patience).C():
		t.Fatal("the second agent never had its turn")
	}
	stop()
	require.NoError(t, <-ended)
}

func TestLeadStopsWhileWaiting(t *testing.T) {
	w := newWorld(t)
	holder := newWorker()
	ended := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- lead(ctx, w.elects("holder"), holder.work) }()
	<-holder.began
	waiting, stop := context.WithCancel(t.Context())
	go func() {
		ended <- lead(waiting, w.elects("waiting"), func(context.Context) error { return errors.New("worked out of turn") })
	}()
	stop()
	require.NoError(t, <-ended)
	assert.Equal(t, "holder", *w.lease().Spec.HolderIdentity)
	cancel()
	require.NoError(t, <-ended)
}

func TestLeadLosesTheLease(t *testing.T) {
	w := newWorld(t)
	k := newWorker()
	ended := make(chan error, 1)
	short := leader.Times{LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond}
	go func() { ended <- lead(t.Context(), w.electsWith("me", short), k.work) }()
	<-k.began
	w.memberFront.set(answers(503, "<h1>503</h1>"), nil)
	err := <-ended
	require.ErrorContains(t, err, "lost Lease "+w.config.Namespace+"/fleet-agent")
	<-k.ended
}

func TestLeadReleasesTheLeaseAfterAnError(t *testing.T) {
	w := newWorld(t)
	err := lead(t.Context(), w.elects("me"), func(context.Context) error { return assert.AnError })
	require.ErrorIs(t, err, assert.AnError)
	assert.Empty(t, *w.lease().Spec.HolderIdentity)
}

func TestLeadWithoutElection(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, lead(t.Context(), w.config, func(context.Context) error { return nil }))
	leases, err := w.member.CoordinationV1().Leases(w.config.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, leases.Items)
}
