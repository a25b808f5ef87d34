package leader

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// renewals records when the Lease was last renewed. The elector alone would end a term too late if the API server does not
// answer: it counts the renew deadline from its next attempt, one retry period later. By then another process may hold the Lease. Nor
// does the elector end the term when it reads that another process holds the Lease, before the renew deadline, or that the Lease is older than
// the last renewal, because etcd was restored from a backup. After a restore, the caches of this process may be newer than etcd.
type renewals struct {
	resourcelock.Interface
	clock clock.Clock
	lost  chan struct{} // closed when isLost

	mu        sync.Mutex
	last      time.Time // when the last successful renewal was sent
	renewTime time.Time // of the last successful renewal
	once      sync.Once
}

func newRenewals(lease resourcelock.Interface) *renewals {
	return &renewals{Interface: lease, clock: clock.RealClock{}, lost: make(chan struct{})}
}

// Get ends the term if another process holds the Lease that this one had acquired, or if the Lease is older than the last renewal.
func (r *renewals) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := r.Interface.Get(ctx)
	if err == nil && r.isLost(record) {
		r.once.Do(func() { close(r.lost) })
	}
	return record, raw, err
}

// isLost reports whether this process had acquired the Lease, and does not hold it as it has written it.
func (r *renewals) isLost(record *resourcelock.LeaderElectionRecord) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	isTaken := record.HolderIdentity != "" && record.HolderIdentity != r.Identity()
	return !r.last.IsZero() && (isTaken || record.RenewTime.Time.Before(r.renewTime.Truncate(time.Microsecond))) // a Lease stores microseconds
}

// Create records when the Lease was acquired.
func (r *renewals) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.note(record, func() error { return r.Interface.Create(ctx, record) })
}

// Update records when the Lease was acquired or renewed.
func (r *renewals) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.note(record, func() error { return r.Interface.Update(ctx, record) })
}

// note uses the time before the request was sent: other processes count from when they see the result.
func (r *renewals) note(record resourcelock.LeaderElectionRecord, write func() error) error {
	began := r.clock.Now()
	err := write()
	if err == nil && record.HolderIdentity == r.Identity() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last, r.renewTime = began, record.RenewTime.Time
	}
	return err
}

// watch calls end when the Lease has not been renewed for the deadline, or another process holds it, unless ctx ends first.
func (r *renewals) watch(ctx context.Context, deadline time.Duration, end func()) {
	for left := r.left(deadline); left > 0; left = r.left(deadline) {
		select {
		case <-ctx.Done():
			return
		case <-r.lost:
			end()
			return
		case <-r.clock.After(left):
		}
	}
	end()
}

func (r *renewals) left(deadline time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return deadline - r.clock.Since(r.last)
}
