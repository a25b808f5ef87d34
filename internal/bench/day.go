package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

const (
	// checkins is the number of heartbeats of an agent in an hour, with the check-in interval that the charts set.
	checkins = 4
	interval = time.Hour / checkins
)

// day measures growth, a compressed hour of heartbeats in which some agents are silent for a while, an outage of the API server, after which
// all agents reconnect, and deletions.
func day(ctx context.Context, o Options) ([]figures.Figure, error) {
	g, err := newGrowing(ctx, o)
	if err != nil {
		return nil, err
	}
	defer g.close()
	for _, measure := range []func(context.Context) error{g.growThroughSizes, g.hour, g.outage, g.deleteTenth} {
		if err := measure(ctx); err != nil {
			return g.rows, err
		}
	}
	return g.rows, nil
}

// hour is an hour of heartbeats with check-in intervals that are shortened accordingly. One in ten agents is silent until its Cluster
// counts as disconnected, and then comes back. In the last round agents report the real interval, so that they do not count as
// disconnected during the outage that follows.
func (g *growing) hour(ctx context.Context) error {
	everyone := sim.Numbers(0, len(g.agents.Registered))
	returning, steady := split(everyone, 10)
	beats := sim.Beats{Checkin: g.Hour / checkins, Over: g.Hour / checkins}
	if _, err := g.agents.Beat(ctx, everyone, beats); err != nil { // the hub learns the interval
		return err
	}
	log, err := g.audit.FromHere()
	if err != nil {
		return err
	}
	sent := 0
	c, err := g.measure(ctx, func(ctx context.Context) error {
		for n := range checkins {
			numbers := steady
			if n == checkins-1 {
				numbers, beats.Checkin = everyone, interval
			}
			sent += len(numbers)
			if _, err := g.agents.Beat(ctx, numbers, beats); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	p99, err := apiServerP99(log)
	g.logf("an hour in %s: %d heartbeats, %d writes of the hub, %s of its CPU, p99 of the API server %s", g.Hour, sent, c.Writes, c.hubCPU, p99)
	g.add(hourFigures(len(everyone), len(returning), sent, c, p99)...)
	return err
}

func hourFigures(clusters, returned, heartbeats int, c cost, p99 time.Duration) []figures.Figure {
	title := func(what string) string {
		return fmt.Sprintf("an hour of %d clusters, %d of which are disconnected for most of it: %s", clusters, returned, what)
	}
	return []figures.Figure{
		figures.Counted("day/hour-writes", title("writes of the hub for each that was disconnected"), float64(c.Writes)/float64(max(returned, 1))).
			WithNote(c.PerItem(max(returned, 1))),
		figures.Counted("day/hour-reads", title("reads of the hub"), float64(c.Reads)),
		figures.Processor("day/beat-cpu", title("CPU of the hub for a heartbeat"), c.hubCPU, heartbeats),
		figures.Milliseconds("day/hour-p99", title("p99 of the API server"), p99),
		figures.Processor("day/beat-apiserver-cpu", title("CPU of the API server for a heartbeat"), c.apiServerCPU, heartbeats),
	}
}

// split returns one in oneIn numbers, and the other numbers.
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

// apiServerP99 is the time in which the API server answered 99 % of the requests.
func apiServerP99(log *audit.Log) (time.Duration, error) {
	all, err := log.Next(audit.All)
	return figures.Samples(audit.Latencies(all)).Quantile(.99), err
}

// outage stops the API server for five seconds. Then all agents come back with new connections, spread over the time that their
// backoff spreads them over.
func (g *growing) outage(ctx context.Context) error {
	if _, err := g.awaitQuiet(ctx); err != nil {
		return err
	}
	before, err := usageOf(g.hub.pid())
	if err != nil {
		return err
	}
	if err := g.plane.StopAPIServer(); err != nil {
		return err
	}
	if err := sim.Pause(ctx, 5*time.Second); err != nil {
		return err
	}
	if err := g.plane.StartAPIServer(ctx); err != nil {
		return err
	}
	log, err := g.audit.FromHere()
	if err != nil {
		return err
	}
	began := time.Now()
	clusters := len(g.agents.Registered)
	failed, err := g.agents.Beat(ctx, sim.Numbers(0, clusters), sim.Beats{Checkin: interval, Over: g.Spread, Reconnect: true})
	if err != nil {
		return err
	}
	took := time.Since(began)
	requests, err := g.awaitQuiet(ctx)
	if err != nil {
		return err
	}
	after, err := usageOf(g.hub.pid())
	if err != nil {
		return err
	}
	p99, err := apiServerP99(log)
	c := audit.Count(requests)
	g.logf("all agents are back after %s: p99 of the API server %s, %d heartbeats failed, %d writes of the hub", took, p99, failed, c.Writes)
	title := func(what string) string {
		return fmt.Sprintf("%d agents come back within %s of an outage of the API server: %s", clusters, g.Spread, what)
	}
	g.add(
		figures.Milliseconds("day/outage-p99", title("p99 of the API server"), p99),
		figures.Seconds("day/outage-back", title("until all are back"), took),
		figures.Counted("day/outage-failed", title("heartbeats that failed"), float64(failed)),
		figures.Counted("day/outage-writes", title("writes of the hub"), float64(c.Writes)).WithNote(c.PerItem(1)),
		figures.Counted("day/outage-reads", title("reads of the hub"), float64(c.Reads)),
		figures.Processor("day/outage-cpu", title("CPU of the hub for each"), after.cpu-before.cpu, clusters),
		figures.Bytes("day/memory", title("peak memory of the hub"), after.peakMemory),
	)
	return err
}
