package bench

import (
	"context"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// small measures what can be counted, all on one API server: a storm, first heartbeats, an idle hub, a restart, deletions, and
// in the end, without the hub, the plain client.
func small(ctx context.Context, o Options) (all []figures.Figure, err error) {
	w, err := withHub(ctx, o, flavour{})
	if err != nil {
		return nil, err
	}
	defer w.close()
	warm, err := sim.NewAgents(ctx, w.API, w.run("warm-up"))
	if err != nil {
		return nil, err
	}
	if _, err := warm.Register(ctx, o.Idle, 1); err != nil {
		return nil, err
	}
	agents, err := sim.NewAgents(ctx, w.API, w.run("storm"))
	if err != nil {
		return nil, err
	}
	s, err := w.storm(ctx, agents, o.Storm, o.InFlight)
	if err != nil {
		return nil, err
	}
	beats, err := w.firstBeats(ctx, agents)
	if err != nil {
		return nil, err
	}
	all = append(s.figures("storm"), s.withBundle(beats)...)
	settled, err := (&growing{world: w, agents: agents}).settled(ctx, o.Storm)
	if err != nil {
		return append(all, settled...), err
	}
	all = append(all, settled...)
	if o.Named != nil {
		return all, nil // the plain client's writes would be work for a hub that nobody can stop
	}
	w.hub.stop()
	_, plain, err := w.plain(ctx, "small", o.Storm, false)
	return append(all, cpuInFloors(s, plain)), err
}

// settled measures a hub that has its clusters: what it keeps, what it does when nothing happens, a restart, and deletions.
func (g *growing) settled(ctx context.Context, size int) (all []figures.Figure, err error) {
	for _, measure := range []func(context.Context, int) ([]figures.Figure, error){g.held, g.idle, g.restarted} {
		measured, err := measure(ctx, size)
		all = append(all, measured...)
		if err != nil {
			return all, err
		}
	}
	deleted, err := g.tenth(ctx)
	return append(all, deleted...), err
}
