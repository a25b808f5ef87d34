package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/leader"
)

// Options say with whom a process shares.
type Options struct {
	// Main is the election that one who does not share takes part in too: its Lease keeps the two kinds apart. Of all who
	// share one holds it, and the others work as well. Its OnWaiting is called while somebody holds it who does not share. The
	// Leases of the shards are in its namespace. Required.
	Main leader.Election
	// Release is that of this program; two releases do not share. Required.
	Release string
	// Times are of the Leases of shards; a zero one has its default: 10s, 8s and 2s. All who share must have the same.
	Times leader.Times
	// OnHeld, if given, is called with the number of shards this process works on whenever that has changed.
	OnHeld func(shards int)
}

const (
	defaultLeaseDuration = 10 * time.Second
	defaultRenewDeadline = 8 * time.Second
	defaultRetryPeriod   = 2 * time.Second
)

// WithDefaults fills in the times that are 0.
func WithDefaults(t leader.Times) leader.Times {
	return leader.Times{
		LeaseDuration: cmp.Or(t.LeaseDuration, defaultLeaseDuration),
		RenewDeadline: cmp.Or(t.RenewDeadline, defaultRenewDeadline),
		RetryPeriod:   cmp.Or(t.RetryPeriod, defaultRetryPeriod),
	}
}

// ErrNotShared says that somebody has taken the main Lease who does not share, such as an older release. The process should
// end and be started again: it waits then.
var ErrNotShared = errors.New("another hub that does not share the work has taken its Lease")

// Work is what is shared. It calls Ready of the Gate when its caches are filled, and asks the Gate about each object.
type Work func(ctx context.Context, gate *Gate) error

// Run waits until nobody is at work who does not share, and then runs work, which this process shares with all others that do
// so in the same way. When ctx ends, work ends first and the Leases are given back then. Run returns nil when ctx ended,
// work's error, leader.ErrLost or ErrNotShared.
func Run(ctx context.Context, o Options, work Work) error {
	o.Times = WithDefaults(o.Times)
	if err := o.Times.Validate(); err != nil {
		return fmt.Errorf("shards: %w", err)
	}
	m := &member{Options: o, way: way(o.Release), clock: clock.RealClock{}}
	m.me = named(o.Main.Identity, m.way)
	return m.run(ctx, work)
}

// member is one of those who share.
type member struct {
	Options
	way, me string
	clock   clock.WithTicker
	client  kubernetes.Interface
	table   *table
}

func (m *member) run(ctx context.Context, work Work) error {
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	watched, err := m.watch(watching)
	if err != nil {
		return err
	}
	defer func() { stopWatching(); <-watched }()

	// The main Lease outlives ctx by the time work takes to end: whoever gets it next may not share.
	contest, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	main := m.contestMain(contest)
	err = m.takePart(ctx, main, work)
	stop()
	<-main.ended
	return cmp.Or(err, main.err)
}

// election is that for the main Lease; err is to be read when it has ended.
type election struct {
	ended chan struct{}
	err   error
}

// contestMain takes part in the main election until ctx ends.
func (m *member) contestMain(ctx context.Context) *election {
	main := m.Main
	main.Identity = m.me
	told := m.Main.OnWaiting
	main.OnWaiting = func(holder string) {
		if told != nil && wayOf(holder) != m.way {
			told(holder)
		}
	}
	e := &election{ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		e.err = leader.Run(ctx, main, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
	}()
	return e
}

// takePart waits until it may, and works then.
func (m *member) takePart(ctx context.Context, main *election, work Work) error {
	for permitted := false; !permitted; permitted = m.table.permits(m.way, false) {
		select {
		case <-ctx.Done():
			return nil
		case <-main.ended:
			return main.err
		case <-m.table.changed:
		}
	}
	return newSession(m, main).run(ctx, work)
}

// watch keeps the table until ctx ends; then watched is closed.
func (m *member) watch(ctx context.Context) (watched <-chan struct{}, err error) {
	cfg := rest.AddUserAgent(rest.CopyConfig(m.Main.Client), "shards")
	writing := rest.CopyConfig(cfg)
	writing.Timeout = m.Times.RenewDeadline / 2 //nolint:mnd // so that a second try fits
	if m.client, err = kubernetes.NewForConfig(writing); err != nil {
		return nil, err
	}
	cfg.Timeout = 0 // it would cut off the watch
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	m.table = newTable(m.clock, m.Main.Name, m.Times.LeaseDuration)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return client.CoordinationV1().Leases(m.Main.Namespace).List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return client.CoordinationV1().Leases(m.Main.Namespace).Watch(ctx, o)
			},
		}, client),
		ObjectType: &coordinationv1.Lease{},
		Handler:    m.table,
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		logrus.Debug("Stopped before the Leases were known")
	}
	return done, nil
}
