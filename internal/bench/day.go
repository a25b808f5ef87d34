package bench

import (
	"context"
	"time"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

const (
	// checkins are the heartbeats of an agent in an hour.
	checkins = 4
	// interval is between them, as charts have it. Agents say that it is, when the hour is over that took less: otherwise they would
	// count as gone before they come back from an outage.
	interval = time.Hour / checkins
)

// flappers is the part of the agents that are silent until they count as gone, and come back: one in so many.
const flappers = 10

// day is growth, and then an hour of heartbeats in less time, in which some agents come and go, an outage of the API server
// after which all agents come back, and deletions.
func day(ctx context.Context, o Options) ([]figures.Figure, error) {
	return grown(ctx, o, (*growing).hour, (*growing).outage, (*growing).tenth)
}

// hour is an hour of heartbeats, with check-ins so much shorter.
func (g *growing) hour(ctx context.Context) ([]figures.Figure, error) {
	everybody := sim.Numbers(0, len(g.agents.Members()))
	coming, steady := split(everybody, flappers)
	beats := sim.Beats{Checkin: g.Hour / checkins, Over: g.Hour / checkins}
	if _, err := g.agents.Beat(ctx, everybody, beats); err != nil { // from here on the hub knows the interval
		return nil, err
	}
	latency, err := g.audit.FromHere()
	if err != nil {
		return nil, err
	}
	sent := 0
	c, err := g.costOf(ctx, func(ctx context.Context) error {
		for n := range checkins {
			numbers := steady
			if n == checkins-1 {
				numbers, beats.Checkin = everybody, interval
			}
			sent += len(numbers)
			if _, err := g.agents.Beat(ctx, numbers, beats); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	p99, err := slowest(latency)
	g.say("an hour in %s: %d heartbeats, %d writes of the hub, %s of its CPU, p99 of the API server %s", g.Hour, sent, c.Writes, c.cpu, p99)
	return hourFigures(len(everybody), len(coming), sent, c, p99), err
}

func hourFigures(clusters, came, beats int, c cost, p99 time.Duration) []figures.Figure {
	of := func(what string) string {
		return titled("an hour of %d clusters, %d of which are gone for most of it: %s", clusters, came, what)
	}
	writes := counted("day/hour-writes", of("writes of the hub for each that was gone"), figures.Each(c.Writes, max(came, 1)))
	writes.Note = c.Each(max(came, 1))
	return []figures.Figure{
		writes,
		counted("day/hour-reads", of("reads of the hub"), float64(c.Reads)),
		{Row: "day/beat-cpu", Title: of("CPU of the hub for a heartbeat"), Value: figures.Each(figures.Millis(c.cpu), beats), Unit: "ms", Kind: figures.CPU},
		timed("day/hour-p99", of("p99 of the API server"), figures.Millis(p99), "ms"),
	}
}

// split takes one in so many out.
func split(numbers []int, oneIn int) (taken, left []int) {
	for n, number := range numbers {
		if n%oneIn == 0 {
			taken = append(taken, number)
		} else {
			left = append(left, number)
		}
	}
	return taken, left
}

// slowest is the time within which the API server answered 99 of 100 requests.
func slowest(log *audit.Log) (time.Duration, error) {
	all, err := log.Since(audit.All)
	return figures.Times(audit.Latencies(all)).Quantile(.99), err
}

// outage stops the API server for a while; then all agents come back, over connections of their own, within the time their
// pauses between two tries have spread them over.
func (g *growing) outage(ctx context.Context) ([]figures.Figure, error) {
	if g.plane == nil {
		return nil, nil // nobody said how the API server is stopped
	}
	if _, err := g.quiet(ctx); err != nil {
		return nil, err
	}
	before, err := g.usage()
	if err != nil {
		return nil, err
	}
	if err := g.beAway(ctx); err != nil {
		return nil, err
	}
	latency, err := g.audit.FromHere()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	everybody := sim.Numbers(0, len(g.agents.Members()))
	failed, err := g.agents.Beat(ctx, everybody, sim.Beats{Checkin: interval, Over: g.Spread, Anew: true})
	if err != nil {
		return nil, err
	}
	back := time.Since(began)
	return g.returned(ctx, before.CPU, failed, back, latency)
}

func (g *growing) beAway(ctx context.Context) error {
	const away = 5 * time.Second
	if err := g.plane.StopAPIServer(); err != nil {
		return err
	}
	if err := sim.Pause(ctx, away); err != nil {
		return err
	}
	return g.plane.StartAPIServer(ctx)
}

// returned is what the return of all agents cost.
func (g *growing) returned(ctx context.Context, cpu time.Duration, failed int, back time.Duration, latency *audit.Log) ([]figures.Figure, error) {
	sent, err := g.quiet(ctx)
	if err != nil {
		return nil, err
	}
	after, err := g.usage()
	if err != nil {
		return nil, err
	}
	p99, err := slowest(latency)
	c := audit.Count(sent)
	clusters := len(g.agents.Members())
	of := func(what string) string {
		return titled("%d agents come back within %s of an outage of the API server: %s", clusters, g.Spread, what)
	}
	writes := counted("day/outage-writes", of("writes of the hub"), float64(c.Writes))
	writes.Note = c.Each(1)
	g.say("the outage is over in %s: p99 of the API server %s, %d heartbeats failed, %d writes of the hub", back, p99, failed, c.Writes)
	return []figures.Figure{
		timed("day/outage-p99", of("p99 of the API server"), figures.Millis(p99), "ms"),
		timed("day/outage-back", of("all are back after"), back.Seconds(), "s"),
		counted("day/outage-failed", of("heartbeats that failed"), float64(failed)),
		writes,
		counted("day/outage-reads", of("reads of the hub"), float64(c.Reads)),
		{Row: "day/outage-cpu", Title: of("CPU of the hub for each"), Value: figures.Each(figures.Millis(after.CPU-cpu), clusters), Unit: "ms", Kind: figures.CPU},
		{Row: "day/memory", Title: of("most memory of the hub"), Value: figures.MiB(after.Peak), Unit: "MiB", Kind: figures.Size},
	}, err
}

// tenth deletes a tenth of the clusters.
func (g *growing) tenth(ctx context.Context) ([]figures.Figure, error) {
	const oneIn, most = 10, 1000
	return g.deletions(ctx, min(len(g.agents.Members())/oneIn, most))
}
