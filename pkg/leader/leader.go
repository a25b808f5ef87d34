// Package leader lets one of several processes work at a time, by a Lease. It is client-go's leader election with a faster takeover
// and a stricter end of a term.
package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
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

// Times of a Lease. A zero value means the default. The hub's chart sets shorter ones.
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

// ErrLost means that this process has lost the Lease: it could not be renewed in time, another process holds it, or it is older than the last own
// renewal, because etcd was restored from a backup. The process should exit and be started again.
var ErrLost = errors.New("lost Lease")

// Run runs work while this process holds the Lease, and releases the Lease when work has returned: not earlier, or two
// processes would work at a time, and not later, or the next one would wait in vain. A process that waits watches the Lease.
// It takes over as soon as the Lease is released, and LeaseDuration after the last renewal that it saw. The context of work ends
// with ctx, or with cause ErrLost when the Lease is lost. Run returns nil when ctx ended, work's error, or ErrLost.
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
	elector, err := e.newElector(election, leading, holders)
	if err != nil {
		return false, err
	}
	defer elector.close()
	ended := make(chan struct{})
	go func() { defer close(ended); elector.Run(election) }()
	defer func() { stop(); <-ended; elector.release(ctx) }()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case term := <-leading:
			stopWaiting()
			return false, e.workForTerm(ctx, elector.bounded(term), work)
		case <-free:
			return true, nil
		case holder := <-holders: // empty while the Lease is free
			if holder != "" && holder != e.Identity && e.OnWaiting != nil {
				e.OnWaiting(holder)
			}
		}
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
		return fmt.Errorf("%w %s/%s: it was not renewed for %s, another process took it, or etcd was restored from a backup",
			ErrLost, e.Namespace, e.Name, e.RenewDeadline)
	}
	return nil
}

// elector is client-go's elector with the lock that it uses.
type elector struct {
	*leaderelection.LeaderElector
	lock    *renewals
	timeout time.Duration
	close   func()
}

// bounded returns a context that ends with the term, and when the Lease was not renewed in time.
func (l *elector) bounded(term context.Context) context.Context {
	ctx, end := context.WithCancel(term)
	go func() {
		defer end()
		l.lock.watch(ctx, l.timeout, end)
	}()
	return ctx
}

// newElector prepares an elector that sends the context of its term to leading, and each holder it sees to holders.
func (e Config) newElector(ctx context.Context, leading chan<- context.Context, holders chan<- string) (*elector, error) {
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
	candidate, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
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
	return &elector{LeaderElector: candidate, lock: lock, timeout: e.RenewDeadline, close: closeClient}, err
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
func (l *elector) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	defer cancel()
	for range releases {
		record, _, err := l.lock.Get(ctx)
		if err != nil || record.HolderIdentity != l.lock.Identity() {
			return
		}
		record.HolderIdentity, record.LeaseDurationSeconds = "", 1
		// After another error the next process waits until the Lease has expired: late, but safe.
		if err := l.lock.Update(ctx, *record); !apierrors.IsConflict(err) {
			return
		}
	}
}

// leaseWatch watches the Lease while this process waits for it.
type leaseWatch struct {
	client   coordinationclient.LeaseInterface
	duration time.Duration
	clock    clock.WithDelayedExecution
	// free receives a signal when the Lease no longer has a holder.
	free chan struct{}
	// ended is closed when the watch has stopped.
	ended chan struct{}

	// held and expiry are used by the informer's handlers only, which run one at a time. expiry fires when the holder has not
	// renewed the Lease for duration.
	held   bool
	expiry clock.Timer
}

// watch watches the Lease until ctx ends. Without the right to watch it nothing is signalled, and only the elector's own tries
// remain.
func (e Config) watch(ctx context.Context) (*leaseWatch, error) {
	cfg := rest.AddUserAgent(rest.CopyConfig(e.Client), "leader-election")
	cfg.Timeout = 0 // it would end the watch
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: transport})
	if err != nil {
		return nil, err
	}
	w := &leaseWatch{
		client: client.CoordinationV1().Leases(e.Namespace), duration: e.LeaseDuration, clock: clock.RealClock{},
		free: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoordinationV1().RESTClient(), "leases", e.Namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, e.Name)),
		ObjectType: &coordinationv1.Lease{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(lease any) { w.observe(ctx, lease) },
			UpdateFunc: func(_, lease any) { w.observe(ctx, lease) },
			DeleteFunc: func(any) { w.observe(ctx, nil) },
		},
	})
	go func() {
		defer close(w.ended)
		defer utilnet.CloseIdleConnectionsFor(transport)
		informer.RunWithContext(ctx)
	}()
	return w, nil
}

// observe restarts the expiry with every renewal, and signals that the Lease has lost its holder.
func (w *leaseWatch) observe(ctx context.Context, object any) {
	if w.expiry != nil {
		w.expiry.Stop()
	}
	lease, _ := object.(*coordinationv1.Lease)
	wasHeld := w.held
	w.held = lease != nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
	switch {
	case w.held:
		w.expiry = w.clock.AfterFunc(w.duration, func() { w.expire(ctx, lease) })
	case wasHeld:
		select {
		case w.free <- struct{}{}:
		default: // one signal is enough
		}
	}
}

// expire releases the Lease for a holder that has stopped renewing it. The elector would need up to two retry periods more: it sees
// renewals only when it tries. The write names the version of the Lease, so a renewal that the watch has missed prevents it.
func (w *leaseWatch) expire(ctx context.Context, lease *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(ctx, w.duration)
	defer cancel()
	released := lease.DeepCopy()
	released.Spec.HolderIdentity = nil
	if _, err := w.client.Update(ctx, released, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
		logrus.Debugf("Cannot release the expired Lease %s/%s: %v", lease.Namespace, lease.Name, err)
	}
}
