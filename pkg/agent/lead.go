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
	// The election outlives ctx by the time work takes to end.
	election, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	leading := make(chan context.Context, 1)
	elector, release, err := newElector(c, leading)
	if err != nil {
		return err
	}
	defer release()
	ended := make(chan struct{})
	go func() { defer close(ended); elector.Run(election) }()
	defer func() { stop(); <-ended }()
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

// newElector sends the context of each term to leading. The second result closes its connections.
func newElector(c Config, leading chan<- context.Context) (*leaderelection.LeaderElector, func(), error) {
	core, closeCore, err := leaseClient(c)
	if err != nil {
		return nil, nil, err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, c.Namespace, registration.AgentName,
		core.CoreV1(), core.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: c.LeaderElection.Identity})
	if err != nil {
		return nil, nil, err
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
	return elector, closeCore, err
}

// leaseClient gives up on a request early enough that a second one fits before the renew deadline.
func leaseClient(c Config) (kubernetes.Interface, func(), error) {
	lease := rest.AddUserAgent(rest.CopyConfig(c.Member), "fleetagent/"+c.Version+" leader-election")
	lease.Timeout = max(time.Second, c.LeaderElection.RenewDeadline/2)
	return newClientset(lease)
}
