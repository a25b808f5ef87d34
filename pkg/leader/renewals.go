package leader

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// renewals knows when the Lease was last renewed. The elector alone would let a holder work for too long that the API server
// does not answer: it counts the renew deadline from its next try, one retry period later, and tells of the end only after it
// has tried to give the Lease back. By then another process may have it.
type renewals struct {
	resourcelock.Interface
	clock clock.Clock

	mu   sync.Mutex
	last time.Time
}

// Create notes when the Lease was taken.
func (r *renewals) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.note(record, func() error { return r.Interface.Create(ctx, record) })
}

// Update notes when the Lease was taken or renewed.
func (r *renewals) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.note(record, func() error { return r.Interface.Update(ctx, record) })
}

// note takes the time before the request is sent: the others count from when they see the result.
func (r *renewals) note(record resourcelock.LeaderElectionRecord, write func() error) error {
	began := r.clock.Now()
	err := write()
	if err == nil && record.HolderIdentity == r.Identity() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last = began
	}
	return err
}

func (r *renewals) left(deadline time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return deadline - r.clock.Since(r.last)
}

// watch calls end when the Lease has not been renewed for the deadline, unless ctx ends before.
func (r *renewals) watch(ctx context.Context, deadline time.Duration, end func()) {
	for left := r.left(deadline); left > 0; left = r.left(deadline) {
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(left):
		}
	}
	end()
}
