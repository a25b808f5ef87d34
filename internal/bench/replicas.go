package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/bench/usage"
)

// pool is several processes of one hub, which share its work or take turns.
type pool struct {
	members []*own
}

func (p *pool) pids() (pids []int) {
	for _, m := range p.members {
		pids = append(pids, m.pids()...)
	}
	return pids
}

func (p *pool) restart(context.Context) error { return errNoRestart }

func (p *pool) stop() {
	for _, m := range p.members {
		m.stop()
	}
}

func (p *pool) during(ctx context.Context) (context.Context, func()) { return ctx, func() {} }

func (p *pool) ending() string { return p.members[0].ending() }

// kill ends one process as a crash does, and forgets it.
func (p *pool) kill(n int) {
	p.members[n].process.Kill()
	p.members = slices.Delete(p.members, n, n+1)
}

// replicas measures one, two and four processes of one hub.
func replicas(ctx context.Context, o Options) (all []figures.Figure, err error) {
	if o.Named != nil {
		return nil, errors.New("the processes of a hub that is named are not started here")
	}
	for _, count := range o.Replicas {
		measured, err := together(ctx, o, count)
		all = append(all, measured...)
		if err != nil {
			return all, fmt.Errorf("%d processes: %w", count, err)
		}
	}
	return all, nil
}

// together measures so many processes, and what happens when the busiest is killed.
func together(ctx context.Context, o Options, count int) ([]figures.Figure, error) {
	w, p, err := withPool(ctx, o, count)
	if err != nil {
		return nil, err
	}
	defer w.close()
	agents, err := sim.NewAgents(ctx, w.API, w.run("replicas"))
	if err != nil {
		return nil, err
	}
	if err := sim.Pause(ctx, o.Balance); err != nil {
		return nil, err
	}
	before, err := each(p.pids())
	if err != nil {
		return nil, err
	}
	s, err := w.storm(ctx, agents, o.Storm, o.InFlight)
	if err != nil {
		return nil, err
	}
	after, err := each(p.pids())
	if err != nil {
		return nil, err
	}
	all := poolFigures(count, s, since(before, after))
	if count == 1 {
		return all, nil
	}
	moved, err := w.moved(ctx, agents, p, busiest(since(before, after)))
	return append(all, moved...), err
}

func withPool(ctx context.Context, o Options, count int) (*world, *pool, error) {
	w, err := newWorld(ctx, o, flavour{})
	if err != nil {
		return nil, nil, err
	}
	p := &pool{}
	w.hub = p
	for n := range count {
		h, err := w.newHub(fmt.Sprintf("hub-%d", n))
		if err != nil {
			return nil, nil, w.orClose(err)
		}
		if err := h.start(); err != nil {
			return nil, nil, w.orClose(err)
		}
		p.members = append(p.members, h)
	}
	return w, p, w.orClose(w.served(ctx))
}

// each is the processor time of each process.
func each(pids []int) (cpu []time.Duration, err error) {
	for _, pid := range pids {
		used, err := usage.Of(pid)
		if err != nil {
			return nil, err
		}
		cpu = append(cpu, used.CPU)
	}
	return cpu, nil
}

func since(before, after []time.Duration) []time.Duration {
	spent := make([]time.Duration, len(after))
	for n := range after {
		spent[n] = after[n] - before[n]
	}
	return spent
}

func busiest(cpu []time.Duration) int { return slices.Index(cpu, slices.Max(cpu)) }

func poolFigures(count int, s storm, cpu []time.Duration) []figures.Figure {
	row := func(what string) string { return fmt.Sprintf("replicas/%d/%s", count, what) }
	of := func(what string) string { return titled("%d processes, %d agents at once: %s", count, s.count, what) }
	sum := time.Duration(0)
	for _, one := range cpu {
		sum += one
	}
	share := figures.Figure{Row: row("busiest"), Title: of("share of the busiest process in their CPU"), Kind: figures.Ratio}
	share.Value = float64(slices.Max(cpu)) / float64(max(sum, 1))
	share.Note = fmt.Sprintf("CPU of each: %v", cpu)
	return []figures.Figure{
		rated(row("rate"), of("registrations a second"), s.rate),
		{Row: row("cpu"), Title: of("CPU of all for each"), Value: s.cpu(), Unit: "ms", Kind: figures.CPU},
		share,
		counted(row("writes"), of("writes for each"), figures.Each(s.cost.Writes, s.count)),
		counted(row("failed"), of("requests that failed"), float64(s.cost.Failed)),
		{Row: row("memory"), Title: of("most memory of all"), Value: figures.MiB(s.peak), Unit: "MiB", Kind: figures.Size},
	}
}

// moved kills the n-th process and has agents register at once: the one that waits longest waits until the share of the killed
// one has moved. Nobody may be lost, so all must be answered.
func (w *world) moved(ctx context.Context, agents *sim.Agents, p *pool, n int) ([]figures.Figure, error) {
	const count = 50
	left := len(p.members) - 1
	p.kill(n)
	took, err := agents.Register(ctx, count, count)
	if err != nil {
		return nil, err
	}
	w.say("the busiest of %d processes was killed: the last of %d agents was answered after %s, the first after %s",
		left+1, count, slices.Max(took), slices.Min(took))
	return []figures.Figure{
		timed(fmt.Sprintf("replicas/%d/moved", left+1), titled("the busiest of %d processes is killed: seconds until its share has moved", left+1),
			slices.Max(took).Seconds(), "s"),
	}, nil
}
