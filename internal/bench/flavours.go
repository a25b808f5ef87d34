package bench

import (
	"context"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// throttled measures a hub whose controller manager sends 20 requests a second, as it does unless it is told otherwise. A hub
// that needs it for every registration is no faster.
func throttled(ctx context.Context, o Options) ([]figures.Figure, error) {
	s, err := hundred(ctx, o, "throttled", flavour{controllerManager: []string{"--kube-api-qps=20", "--kube-api-burst=30"}})
	if err != nil {
		return nil, err
	}
	return []figures.Figure{
		rated("throttled/rate", "100 agents at once, kube-controller-manager at 20 requests a second: registrations a second", s.rate),
	}, nil
}

// tokenSecrets measures what a registration costs where the API server grants no token that lives long enough for an agent that
// cannot renew it.
func tokenSecrets(ctx context.Context, o Options) ([]figures.Figure, error) {
	s, err := hundred(ctx, o, "secrets", flavour{apiServer: []string{"--service-account-max-token-expiration=24h"}})
	if err != nil {
		return nil, err
	}
	return s.figures("secrets"), nil
}

// hundred has 100 agents register at once, on a hub that has had a few before.
func hundred(ctx context.Context, o Options, name string, f flavour) (s storm, err error) {
	const count, before = 100, 5
	w, err := withHub(ctx, o, f)
	if err != nil {
		return s, err
	}
	defer w.close()
	agents, err := sim.NewAgents(ctx, w.API, w.run(name))
	if err != nil {
		return s, err
	}
	if _, err := agents.Register(ctx, before, 1); err != nil {
		return s, err
	}
	return w.storm(ctx, agents, count, count)
}
