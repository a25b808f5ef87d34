package agent

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/muster-fleet/muster/pkg/registration"
)

// lead runs work while this process holds the Lease, and gives the Lease back when work has ended: not earlier, or two
// agents would work at a time, and not later, or the next one would wait for a process that does nothing.
func lead(ctx context.Context, c Config, work func(context.Context) error) error {
	if c.LeaderElection == nil {
		return work(ctx)
	}
	// The contest outlives ctx by the time work takes to end.
	contest, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	leading := make(chan context.Context, 1)
	e, err := newElection(c, leading)
	if err != nil {
		return err
	}
	defer e.close()
	ended := make(chan struct{})
	go func() { defer close(ended); e.elector.Run(contest) }()
	defer func() { stop(); <-ended; e.release(ctx) }()
	select {
	case <-ctx.Done():
		return nil
	case term := <-leading:
		return workForTerm(ctx, term, c, work)
	}
}

func workForTerm(ctx, term context.Context, c Config, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(term, cancel)()
	if err := work(ctx); err != nil {
		return err
	}
	if term.Err() != nil {
		return fmt.Errorf("lost Lease %s/%s: it could not be renewed for %s; the API server of this cluster did not answer, or another agent took it",
			c.Namespace, registration.AgentName, c.LeaderElection.RenewDeadline)
	}
	return nil
}

// election is a Lease and the contest for it.
type election struct {
	elector *leaderelection.LeaderElector
	lock    resourcelock.Interface
	timeout time.Duration
	close   func()
}

// newElection sends the context of each term to leading.
func newElection(c Config, leading chan<- context.Context) (*election, error) {
	core, closeCore, err := leaseClient(c)
	if err != nil {
		return nil, err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, c.Namespace, registration.AgentName,
		core.CoreV1(), core.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: c.LeaderElection.Identity})
	if err != nil {
		return nil, err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   c.LeaderElection.LeaseDuration,
		RenewDeadline:   c.LeaderElection.RenewDeadline,
		RetryPeriod:     c.LeaderElection.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            registration.AgentName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) { leading <- term },
			OnStoppedLeading: func() {},
		},
	})
	return &election{elector: elector, lock: lock, timeout: c.LeaderElection.RenewDeadline, close: closeCore}, err
}

// release gives the Lease back once more. The elector does so itself, but a renewal that was on its way when it was
// stopped can arrive between its read and its write, and then the Lease stays ours until it runs out.
func (e *election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.timeout)
	defer cancel()
	record, _, err := e.lock.Get(ctx)
	if err != nil || record.HolderIdentity != e.lock.Identity() {
		return
	}
	record.HolderIdentity, record.LeaseDurationSeconds = "", 1
	// When this fails as well, the next agent waits for the Lease to run out: late, but safe.
	_ = e.lock.Update(ctx, *record)
}

// leaseClient gives up on a request early enough that a second one fits before the renew deadline.
func leaseClient(c Config) (kubernetes.Interface, func(), error) {
	lease := rest.AddUserAgent(rest.CopyConfig(c.Member), "fleetagent/"+c.Version+" leader-election")
	lease.Timeout = max(time.Second, c.LeaderElection.RenewDeadline/2)
	return newClientset(lease)
}
