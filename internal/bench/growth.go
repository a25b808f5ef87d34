package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// growing is a hub that gets more and more clusters.
type growing struct {
	*world
	agents *sim.Agents
}

// growth measures what one more registration, an idle hub and a restart cost as the hub grows, and deletions in the end.
func growth(ctx context.Context, o Options) ([]figures.Figure, error) {
	return grown(ctx, o, (*growing).tenth)
}

// grown grows a hub through all sizes, and measures the rest one after the other.
func grown(ctx context.Context, o Options, then ...func(*growing, context.Context) ([]figures.Figure, error)) (all []figures.Figure, err error) {
	g, err := newGrowing(ctx, o)
	if err != nil {
		return nil, err
	}
	defer g.close()
	for _, size := range o.Clusters {
		measured, err := g.at(ctx, size)
		all = append(all, measured...)
		if err != nil {
			return all, err
		}
	}
	all = append(all, spreads(all, o.Clusters)...)
	for _, measure := range then {
		measured, err := measure(g, ctx)
		all = append(all, measured...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func newGrowing(ctx context.Context, o Options) (*growing, error) {
	w, err := withHub(ctx, o, flavour{})
	if err != nil {
		return nil, err
	}
	agents, err := sim.NewAgents(ctx, w.API, w.run("grow"))
	return &growing{world: w, agents: agents}, w.orClose(err)
}

// grow has agents register and send their first heartbeat until there are so many.
func (g *growing) grow(ctx context.Context, size int) error {
	have := len(g.agents.Members())
	if size <= have {
		return nil
	}
	_, err := g.costOf(ctx, func(ctx context.Context) error {
		_, err := g.agents.Register(ctx, size-have, g.InFlight)
		return err
	})
	if err != nil {
		return err
	}
	return g.firstBeats(ctx, have)
}

// firstBeats are those of the agents from that number on. A hub that has answered may still write what the agent may do.
func (g *growing) firstBeats(ctx context.Context, from int) error {
	_, err := g.agents.Beat(ctx, sim.Numbers(from, len(g.agents.Members())-from), sim.Beats{AtATime: g.InFlight})
	return err
}

func (g *growing) at(ctx context.Context, size int) (all []figures.Figure, err error) {
	if err := g.grow(ctx, size-g.Idle); err != nil {
		return nil, err
	}
	for _, measure := range []func(context.Context, int) ([]figures.Figure, error){g.oneMore, g.held, g.idle, g.restarted} {
		measured, err := measure(ctx, size)
		all = append(all, measured...)
		if err != nil {
			return all, fmt.Errorf("at %d clusters: %w", size, err)
		}
	}
	g.say("%d clusters: %v", size, short(all))
	return all, nil
}

func short(all []figures.Figure) (texts []string) {
	for _, f := range all {
		texts = append(texts, fmt.Sprintf("%s %.2f %s", f.Row, f.Value, f.Unit))
	}
	return texts
}

// oneMore registers the last few, one after the other, on a hub that does nothing else.
func (g *growing) oneMore(ctx context.Context, size int) ([]figures.Figure, error) {
	var took figures.Times
	c, err := g.costOf(ctx, func(ctx context.Context) (err error) {
		took, err = g.agents.Register(ctx, g.Idle, 1)
		return err
	})
	if err != nil {
		return nil, err
	}
	each := func(sum float64) float64 { return sum / float64(g.Idle) }
	return []figures.Figure{
		{
			Row: rowAt(size, "cpu"), Title: titled("%d clusters: CPU of the hub for one more registration", size),
			Value: each(figures.Millis(c.cpu)), Unit: "ms", Kind: figures.CPU,
		},
		timed(rowAt(size, "p50"), titled("%d clusters: one more, p50", size), figures.Millis(took.Quantile(.5)), "ms"),
		counted(rowAt(size, "requests"), titled("%d clusters: requests of the hub for one more", size), each(float64(c.All()))),
	}, g.firstBeats(ctx, len(g.agents.Members())-g.Idle)
}

func rowAt(size int, what string) string { return fmt.Sprintf("growth/%d/%s", size, what) }

// held is what hub and API server keep of so many clusters.
func (g *growing) held(ctx context.Context, size int) ([]figures.Figure, error) {
	if _, err := g.quiet(ctx); err != nil {
		return nil, err
	}
	used, err := g.usage()
	if err != nil {
		return nil, err
	}
	stored, err := g.stored(ctx)
	return []figures.Figure{
		{Row: rowAt(size, "memory"), Title: titled("%d clusters: most memory of the hub", size), Value: figures.MiB(used.Peak), Unit: "MiB", Kind: figures.Size},
		{Row: rowAt(size, "etcd"), Title: titled("%d clusters: size of etcd", size), Value: figures.MiB(stored), Unit: "MiB", Kind: figures.Size},
	}, err
}

// idle counts what a hub sends to which nothing happens.
func (g *growing) idle(ctx context.Context, size int) ([]figures.Figure, error) {
	c, err := g.costOf(ctx, func(ctx context.Context) error { return sim.Pause(ctx, g.Window) })
	return []figures.Figure{
		counted(rowAt(size, "idle"), titled("%d clusters: requests of an idle hub in %s, beside its Lease", size, g.Window), float64(c.All())),
	}, err
}

// restarted restarts the hub and counts what it sends until it is quiet again.
func (g *growing) restarted(ctx context.Context, size int) ([]figures.Figure, error) {
	if _, err := g.quiet(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := g.hub.restart(ctx); errors.Is(err, errNoRestart) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	c, err := g.sinceRestart(ctx, began)
	reads := counted(rowAt(size, "restart-reads"), titled("%d clusters: reads after a restart", size), float64(c.Reads))
	reads.Note = c.Each(1)
	return []figures.Figure{
		counted(rowAt(size, "restart-writes"), titled("%d clusters: writes after a restart", size), float64(c.Writes)),
		reads,
		timed(rowAt(size, "restart-settled"), titled("%d clusters: from a restart to the hub's last request", size), c.until().Seconds(), "s"),
	}, err
}

// sinceRestart is what the hub sent since then. Every hub reads something when it starts, if late.
func (g *growing) sinceRestart(ctx context.Context, began time.Time) (cost, error) {
	var all []audit.Request
	for {
		more, err := g.quiet(ctx)
		all = append(all, more...)
		c := cost{Tally: audit.Count(all), began: began}
		if err != nil || c.All() > 0 {
			return c, err
		}
	}
}

// spreads hold the largest size against the smallest: what does not grow with the number of clusters is the same at both.
func spreads(all []figures.Figure, sizes []int) []figures.Figure {
	if len(sizes) < 2 {
		return nil
	}
	first, last := slices.Min(sizes), slices.Max(sizes)
	at := func(what string) (few, many float64, known bool) {
		f, knowsFew := figures.Find(all, rowAt(first, what))
		m, knowsMany := figures.Find(all, rowAt(last, what))
		return f.Value, m.Value, knowsFew && knowsMany
	}
	var found []figures.Figure
	if few, many, known := at("cpu"); known {
		found = append(found, figures.Figure{
			Row: "growth/cpu-ratio", Title: titled("CPU for one more registration at %d clusters, in terms of that at %d", last, first),
			Value: many / few, Kind: figures.Ratio,
		})
	}
	if few, many, known := at("restart-reads"); known {
		found = append(found, counted("growth/more-restart-reads", titled("reads after a restart at %d clusters, more than at %d", last, first), many-few))
	}
	return found
}
