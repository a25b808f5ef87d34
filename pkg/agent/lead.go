package agent

import (
	"context"

	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
)

// lead runs work while this process holds the agents' Lease.
func lead(ctx context.Context, c Config, work func(context.Context) error) error {
	if c.LeaderElection == nil {
		return work(ctx)
	}
	return leader.Run(ctx, leader.Election{
		Client:    c.Member,
		Namespace: c.Namespace,
		Name:      registration.AgentName,
		Identity:  c.LeaderElection.Identity,
		OnWaiting: func(string) { c.OnState("standing by: another agent of this namespace holds the Lease") },
		Times:     c.LeaderElection.Times,
	}, work)
}
