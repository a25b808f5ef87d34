package bench

import (
	"context"
	"time"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// importing is a hub, and a member that is imported many times.
type importing struct {
	*world
	member *world
	given  *sim.Imports
}

// imports measures clusters that the hub is given kubeconfigs of, many at once.
func imports(ctx context.Context, o Options) ([]figures.Figure, error) {
	i, err := newImporting(ctx, o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	return i.many(ctx)
}

// silence measures a few imports, alone and beside members that accept connections and never answer.
func silence(ctx context.Context, o Options) ([]figures.Figure, error) {
	i, err := newImporting(ctx, o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	return i.besideSilence(ctx)
}

// newImporting has imported one cluster, which pays for everybody's connections.
func newImporting(ctx context.Context, o Options) (*importing, error) {
	hub, err := withHub(ctx, o, flavour{})
	if err != nil {
		return nil, err
	}
	i := &importing{world: hub}
	if i.member, err = newWorld(ctx, o, flavour{}); err != nil {
		return nil, hub.orClose(err)
	}
	if i.given, err = sim.NewImports(ctx, hub.API); err == nil {
		_, err = i.take(ctx, "warm-up", 1)
	}
	if err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

func (i *importing) close() {
	i.world.close()
	i.member.close()
}

func (i *importing) take(ctx context.Context, name string, count int) (figures.Times, error) {
	return i.given.Import(ctx, i.run(name), count, i.member.plane.Kubeconfig())
}

func (i *importing) many(ctx context.Context) ([]figures.Figure, error) {
	var rate float64
	count := i.Imports
	atHub, err := i.costOf(ctx, func(ctx context.Context) error {
		if err := i.member.audit.Skip(); err != nil {
			return err
		}
		began := time.Now()
		_, err := i.take(ctx, "many", count)
		rate = figures.PerSecond(count, time.Since(began))
		return err
	})
	if err != nil {
		return nil, err
	}
	requests, err := i.member.audit.Since(audit.ByAgents(i.UserAgents...))
	if err != nil {
		return nil, err
	}
	i.say("%d imports: %.1f/s", count, rate)
	return importFigures(count, rate, atHub, audit.Count(requests)), nil
}

func importFigures(count int, rate float64, hub cost, member audit.Tally) []figures.Figure {
	atHub := counted("imports/hub-requests", "requests to the hub's API server for one import", figures.Each(hub.All(), count))
	atHub.Note = hub.Each(count)
	atMember := counted("imports/member-requests", "requests to the member for one import", figures.Each(member.All(), count))
	atMember.Note = member.Each(count)
	return []figures.Figure{
		rated("imports/rate", titled("%d clusters of one member imported at once: a second", count), rate),
		atHub, atMember,
		{Row: "imports/cpu", Title: "CPU of the hub for one import", Value: figures.Each(figures.Millis(hub.cpu), count), Unit: "ms", Kind: figures.CPU},
	}
}

// besideSilence imports a few clusters, then the same beside members that never answer.
func (i *importing) besideSilence(ctx context.Context) ([]figures.Figure, error) {
	few := min(20, i.Imports)
	alone, err := i.take(ctx, "alone", few)
	if err != nil {
		return nil, err
	}
	silence, err := sim.NewSilence()
	if err != nil {
		return nil, err
	}
	defer silence.Close()
	kubeconfig, err := silence.Kubeconfig()
	if err != nil {
		return nil, err
	}
	const silent = 100
	if err := i.given.Create(ctx, i.run("silent"), silent, i.InFlight, kubeconfig); err != nil {
		return nil, err
	}
	if _, err := i.quiet(ctx); err != nil { // what the hub makes for each of them here is work, too
		return nil, err
	}
	beside, err := i.take(ctx, "beside", few)
	if err != nil {
		return nil, err
	}
	a, b := alone.Quantile(.5), beside.Quantile(.5)
	i.say("%d imports: p50 %s alone, %s beside %d silent members", few, a, b, silent)
	return []figures.Figure{
		timed("imports/alone-p50", titled("%d imports: p50", few), a.Seconds(), "s"),
		timed("imports/silent-p50", titled("%d imports beside %d members that never answer: p50", few, silent), b.Seconds(), "s"),
		{Row: "imports/silent-ratio", Title: "the same, in terms of those without them", Value: b.Seconds() / a.Seconds(), Kind: figures.Ratio},
	}, nil
}
