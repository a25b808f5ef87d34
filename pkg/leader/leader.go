// Package leader lets one of several processes work at a time, by a Lease. It is client-go's leader election with a faster takeover
// and a stricter end of a term.
package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Config describes the Lease and this process as a candidate for it. All candidates must have the same Times.
type Config struct {
	// Client reaches the API server that has the Lease. Required.
	Client *rest.Config
	// Namespace and Name identify the Lease. Required.
	Namespace, Name string
	// Identity is the name of this process in the Lease; it must be different for each process. Required.
	Identity string
	// OnWaiting, if given, is called while this process waits, each time it sees another holder. It is not called after work has
	// begun.
	OnWaiting func(holder string)
	Times
}

// Times of a Lease. A zero value means the default.
type Times struct {
	// LeaseDuration is the time without a renewal after which another process takes over; 0 means 30s.
	LeaseDuration time.Duration
	// RenewDeadline is the time without a successful renewal after which the holder stops; 0 means 25s.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two renewals, and between two attempts to acquire the Lease; 0 means 10s.
	RetryPeriod time.Duration
}

const (
	defaultLeaseDuration = 30 * time.Second
	defaultRenewDeadline = 25 * time.Second
	defaultRetryPeriod   = 10 * time.Second
)

// WithDefaults replaces zero values with the defaults.
func (t Times) WithDefaults() Times {
	fill := func(d *time.Duration, fallback time.Duration) {
		if *d == 0 {
			*d = fallback
		}
	}
	fill(&t.LeaseDuration, defaultLeaseDuration)
	fill(&t.RenewDeadline, defaultRenewDeadline)
	fill(&t.RetryPeriod, defaultRetryPeriod)
	return t
}

// Validate returns an error for times with which client-go would panic. Call it after WithDefaults.
func (t Times) Validate() error {
	const jitter = 12 // tenths
	switch {
	case t.RetryPeriod <= 0:
		return fmt.Errorf("leader election: the retry period is %s: it must not be negative", t.RetryPeriod)
	case t.RenewDeadline <= t.RetryPeriod*jitter/10:
		return fmt.Errorf("leader election: the renew deadline (%s) must be longer than 1.2 times the retry period (%s)", t.RenewDeadline, t.RetryPeriod)
	case t.LeaseDuration <= t.RenewDeadline:
		return fmt.Errorf("leader election: the lease duration (%s) must be longer than the renew deadline (%s)", t.LeaseDuration, t.RenewDeadline)
	}
	return nil
}

// ErrLost means that the Lease could not be renewed. The process should exit and be started again.
var ErrLost = errors.New("lost Lease")

// Run runs work while this process holds the Lease, and releases the Lease when work has returned: not earlier, or two
// processes would work at a time, and not later, or the next one would wait for nothing. A process that waits watches the Lease.
// It takes over as soon as the Lease is released, and LeaseDuration after the last renewal that it saw. The context of work ends
// with ctx, or with cause ErrLost when the Lease could not be renewed. Run returns nil when ctx ended, work's error, or ErrLost.
func Run(ctx context.Context, e Config, work func(context.Context) error) error {
	e.Times = e.Times.WithDefaults()
	if err := e.Times.Validate(); err != nil {
		return err
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	watch, err := e.watch(waiting)
	if err != nil {
		return err
	}
	defer func() { stop(); <-watch.ended }()
	for {
		again, err := e.round(ctx, stop, watch.free, work)
		if !again {
			return err
		}
	}
}

// round tries to acquire the Lease until it succeeds, and works then. The result again asks for another round because the Lease
// became free: the elector would try again only after its next pause.
func (e Config) round(ctx context.Context, stopWaiting func(), free <-chan struct{}, work func(context.Context) error) (again bool, err error) {
	// The Lease is renewed until work has returned, which is after the end of ctx.
	election, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	leading, holders := make(chan context.Context, 1), make(chan string)
	contest, err := e.contest(election, leading, holders)
	if err != nil {
		return false, err
	}
	defer contest.close()
	ended := make(chan struct{})
	go func() { defer close(ended); contest.elector.Run(election) }()
	defer func() { stop(); <-ended; contest.release(ctx) }()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case term := <-leading:
			stopWaiting()
			return false, e.workForTerm(ctx, contest.bounded(term), work)
		case <-free:
			return true, nil
		case holder := <-holders:
			e.waitFor(holder)
		}
	}
}

// waitFor reports a holder other than this process. The name is empty while the Lease is free.
func (e Config) waitFor(holder string) {
	if holder != "" && holder != e.Identity && e.OnWaiting != nil {
		e.OnWaiting(holder)
	}
}

// workForTerm runs work with a context that ends with ctx, or with the term; the cause is ErrLost then.
func (e Config) workForTerm(ctx, term context.Context, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(term, func() { cancel(ErrLost) })()
	if err := work(ctx); err != nil {
		return err
	}
	if term.Err() != nil {
		return fmt.Errorf("%w %s/%s: it could not be renewed for %s; the API server did not answer, another process took it, or etcd was restored",
			ErrLost, e.Namespace, e.Name, e.RenewDeadline)
	}
	return nil
}

// contest is one run of the elector.
type contest struct {
	elector *leaderelection.LeaderElector
	lock    *renewals
	timeout time.Duration
	close   func()
}

// bounded returns a context that ends with the term, and when the Lease was not renewed in time.
func (c *contest) bounded(term context.Context) context.Context {
	ctx, end := context.WithCancel(term)
	go func() {
		defer end()
		c.lock.watch(ctx, c.timeout, end)
	}()
	return ctx
}

// contest prepares an elector that sends the context of its term to leading, and each holder it sees to holders.
func (e Config) contest(ctx context.Context, leading chan<- context.Context, holders chan<- string) (*contest, error) {
	client, closeClient, err := e.client()
	if err != nil {
		return nil, err
	}
	lease, err := resourcelock.New(resourcelock.LeasesResourceLock, e.Namespace, e.Name,
		client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: e.Identity})
	if err != nil {
		return nil, err
	}
	lock := newRenewals(lease)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: e.LeaseDuration,
		RenewDeadline: e.RenewDeadline,
		RetryPeriod:   e.RetryPeriod,
		Name:          e.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) { leading <- term },
			OnStoppedLeading: func() {},
			OnNewLeader: func(holder string) {
				select {
				case holders <- holder:
				case <-ctx.Done():
				}
			},
		},
	})
	return &contest{elector: elector, lock: lock, timeout: e.RenewDeadline, close: closeClient}, err
}

// client has a timeout that leaves time for a second request before the renew deadline.
func (e Config) client() (kubernetes.Interface, func(), error) {
	cfg := rest.AddUserAgent(rest.CopyConfig(e.Client), "leader-election")
	cfg.Timeout = max(time.Second, e.RenewDeadline/2)
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: transport, Timeout: cfg.Timeout})
	return client, func() { utilnet.CloseIdleConnectionsFor(transport) }, err
}

// releases is the number of attempts to release the Lease: a renewal that was in flight when the elector stopped can arrive between
// the read and the write.
const releases = 3

// release removes this process from the Lease. The elector could do that, but it would do so before the term has ended.
func (c *contest) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	for range releases {
		record, _, err := c.lock.Get(ctx)
		if err != nil || record.HolderIdentity != c.lock.Identity() {
			return
		}
		record.HolderIdentity, record.LeaseDurationSeconds = "", 1
		// After another error the next process waits until the Lease has expired: late, but safe.
		if err := c.lock.Update(ctx, *record); !apierrors.IsConflict(err) {
			return
		}
	}
}
