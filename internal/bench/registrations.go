package bench

import (
	"context"
	"time"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// registrations measures an idle hub, a storm, and the first heartbeats after it; before and after that a plain client that
// makes the same writes, in the same minutes on an API server of the same kind.
func registrations(ctx context.Context, o Options) ([]figures.Figure, error) {
	before, err := takeFloor(ctx, o)
	if err != nil {
		return nil, err
	}
	measured, storm, err := onHub(ctx, o)
	if err != nil {
		return measured, err
	}
	after, err := takeFloor(ctx, o)
	if err != nil {
		return measured, err
	}
	return append(measured, before.and(after).figures(storm)...), nil
}

func onHub(ctx context.Context, o Options) (all []figures.Figure, s storm, err error) {
	w, err := withHub(ctx, o, flavour{})
	if err != nil {
		return nil, s, err
	}
	defer w.close()
	idle, err := w.oneByOne(ctx)
	if err != nil {
		return nil, s, err
	}
	agents, err := sim.NewAgents(ctx, w.API, w.run("storm"))
	if err != nil {
		return idle, s, err
	}
	if s, err = w.storm(ctx, agents, o.Storm, o.InFlight); err != nil {
		return idle, s, err
	}
	beats, err := w.firstBeats(ctx, agents)
	if err != nil {
		return idle, s, err
	}
	return append(append(idle, s.figures("storm")...), s.withBundle(beats)...), s, nil
}

// oneByOne registers agents on an idle hub, one after the other.
func (w *world) oneByOne(ctx context.Context) ([]figures.Figure, error) {
	agents, err := sim.NewAgents(ctx, w.API, w.run("idle"))
	if err != nil {
		return nil, err
	}
	took, err := agents.Register(ctx, w.Idle, 1)
	if err != nil {
		return nil, err
	}
	w.say("idle: p50 %s, p99 %s", took.Quantile(.5), took.Quantile(.99))
	const p50 = "idle hub: one registration, from its request to the credential it can read, p50"
	return []figures.Figure{timed("idle/p50", p50, figures.Millis(took.Quantile(.5)), "ms")}, nil
}

// storm is many agents that registered at once.
type storm struct {
	count int
	rate  float64 // registrations a second
	took  figures.Times
	cost  cost
	peak  int64 // bytes
}

// storm has agents register at once.
func (w *world) storm(ctx context.Context, agents *sim.Agents, count, atATime int) (s storm, err error) {
	s.count = count
	s.cost, err = w.costOf(ctx, func(ctx context.Context) (err error) {
		began := time.Now()
		s.took, err = agents.Register(ctx, count, atATime)
		s.rate = figures.PerSecond(count, time.Since(began))
		return err
	})
	if err != nil {
		return s, err
	}
	used, err := w.usage()
	s.peak = used.Peak
	w.say("%d at once: %.1f registrations/s, p99 %s, %.1f ms of CPU and %.2f writes each", count, s.rate, s.took.Quantile(.99),
		figures.Millis(s.cost.cpu)/float64(count), figures.Each(s.cost.Writes, count))
	return s, err
}

// cpu is the processor time of the hub for one registration, in milliseconds.
func (s storm) cpu() float64 { return figures.Each(figures.Millis(s.cost.cpu), s.count) }

func (s storm) figures(row string) []figures.Figure {
	at := func(what string) string { return titled("%d agents at once: %s", s.count, what) }
	requests := counted(row+"/failed", at("requests of the hub that failed"), float64(s.cost.Failed))
	requests.Note = s.cost.Each(s.count)
	return []figures.Figure{
		rated(row+"/rate", at("registrations a second"), s.rate),
		timed(row+"/p99", at("from a request to the credential, p99"), s.took.Quantile(.99).Seconds(), "s"),
		{Row: row + "/cpu", Title: at("CPU of the hub for each"), Value: s.cpu(), Unit: "ms", Kind: figures.CPU},
		counted(row+"/writes", at("writes of the hub for each"), figures.Each(s.cost.Writes, s.count)),
		counted(row+"/reads", at("reads of the hub for each"), figures.Each(s.cost.Reads, s.count)),
		requests,
		{Row: row + "/memory", Title: at("most memory of the hub"), Value: figures.MiB(s.peak), Unit: "MiB", Kind: figures.Size},
	}
}

// firstBeats has all agents send their first heartbeat, which tells the hub where they are: their Bundles follow.
func (w *world) firstBeats(ctx context.Context, agents *sim.Agents) (cost, error) {
	all := sim.Numbers(0, len(agents.Members()))
	return w.costOf(ctx, func(ctx context.Context) error {
		_, err := agents.Beat(ctx, all, sim.Beats{AtATime: w.InFlight})
		return err
	})
}

// withBundle adds what the first heartbeats cost to what the registrations did.
func (s storm) withBundle(beats cost) []figures.Figure {
	writes := counted("beat/writes", "writes of the hub after an agent's first heartbeat: its Bundle, and what of it goes to the agent",
		figures.Each(beats.Writes, s.count))
	writes.Note = beats.Each(s.count)
	bundles := beats.Kinds["create bundles"]
	return []figures.Figure{
		counted("storm/writes-with-bundle", "writes of the hub for each registration and the agent's Bundle", figures.Each(s.cost.Writes+bundles, s.count)),
		writes,
		counted("beat/reads", "reads of the hub after an agent's first heartbeat", figures.Each(beats.Reads, s.count)),
		counted("beat/failed", "requests of the hub that failed after first heartbeats", float64(beats.Failed)),
		{Row: "beat/cpu", Title: "CPU of the hub after an agent's first heartbeat", Value: figures.Each(figures.Millis(beats.cpu), s.count), Unit: "ms", Kind: figures.CPU},
	}
}
