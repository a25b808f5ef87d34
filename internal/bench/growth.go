package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// growing is a hub whose number of clusters grows.
type growing struct {
	*environment
	agents *sim.Agents
	rows   []figures.Figure
}

func (g *growing) add(rows ...figures.Figure) { g.rows = append(g.rows, rows...) }

// growth measures a hub at several numbers of clusters, and then the deletion of a tenth of them.
func growth(ctx context.Context, o Options) ([]figures.Figure, error) {
	g, err := newGrowing(ctx, o)
	if err != nil {
		return nil, err
	}
	defer g.close()
	if err := g.growThroughSizes(ctx); err != nil {
		return g.rows, err
	}
	return g.rows, g.deleteTenth(ctx)
}

// small measures the rows of bench-small on one API server: a storm, first heartbeats, an idle hub, a restart, heartbeats, deletions and
// agents that join. Then it stops the hub and measures a plain client without a hub (the floor).
func small(ctx context.Context, o Options) ([]figures.Figure, error) {
	g, err := newGrowing(ctx, o)
	if err != nil {
		return nil, err
	}
	defer g.close()
	warmUp, err := sim.NewAgents(ctx, g.API, "warm-up")
	if err != nil {
		return nil, err
	}
	if _, err := warmUp.Register(ctx, o.Idle, 1); err != nil {
		return nil, err
	}
	s, err := g.storm(ctx, g.agents.Register, o.Storm, o.InFlight)
	if err != nil {
		return nil, err
	}
	g.add(s.figures("storm")...)
	beats, err := g.firstHeartbeats(ctx, g.agents, s)
	g.add(beats...)
	if err != nil {
		return g.rows, err
	}
	if err := g.settled(ctx, o.Storm); err != nil {
		return g.rows, err
	}
	if err := g.deleteTenth(ctx); err != nil {
		return g.rows, err
	}
	joined, err := g.join(ctx)
	g.add(joined...)
	if err != nil {
		return g.rows, err
	}
	g.hub.stop()
	f, err := g.plainClient(ctx, "small", o.Storm)
	if err != nil {
		return g.rows, err
	}
	g.add(f.cpuInFloors(s)...)
	return g.rows, nil
}

func newGrowing(ctx context.Context, o Options) (*growing, error) {
	e, err := withHub(ctx, o, extraArgs{})
	if err != nil {
		return nil, err
	}
	agents, err := sim.NewAgents(ctx, e.API, "grow")
	return &growing{environment: e, agents: agents}, e.closeOnError(err)
}

func (g *growing) growThroughSizes(ctx context.Context) error {
	if err := g.eachSize(ctx, g.atSize); err != nil {
		return err
	}
	g.add(ratios(g.rows, g.Clusters)...)
	return nil
}

// eachSize measures at each number of clusters, and logs the figures of each.
func (g *growing) eachSize(ctx context.Context, measure func(ctx context.Context, size int) error) error {
	for _, size := range g.Clusters {
		before := len(g.rows)
		if err := measure(ctx, size); err != nil {
			return fmt.Errorf("at %d clusters: %w", size, err)
		}
		for _, f := range g.rows[before:] {
			g.logf("%s %.2f %s", f.Row, f.Value, f.Unit)
		}
	}
	return nil
}

func row(size int, what string) string { return fmt.Sprintf("growth/%d/%s", size, what) }

func titleAt(size int, what string) string { return fmt.Sprintf("%d clusters: %s", size, what) }

// atSize grows the hub to a number of clusters and measures there. The last agents register one after the other, on a hub that has
// nothing else to do.
func (g *growing) atSize(ctx context.Context, size int) error {
	if have := len(g.agents.Registered); size-g.Idle > have {
		_, err := g.measure(ctx, func(ctx context.Context) error {
			_, err := g.agents.Register(ctx, size-g.Idle-have, g.InFlight)
			return err
		})
		if err != nil {
			return err
		}
		if err := g.heartbeatsSince(ctx, have); err != nil {
			return err
		}
	}

	var took figures.Samples
	c, err := g.measure(ctx, func(ctx context.Context) (err error) {
		took, err = g.agents.Register(ctx, g.Idle, 1)
		return err
	})
	if err != nil {
		return err
	}
	g.add(
		figures.Processor(row(size, "cpu"), titleAt(size, "CPU of the hub for one more registration"), c.hubCPU, g.Idle),
		figures.Milliseconds(row(size, "p50"), titleAt(size, "one more registration, p50"), took.Quantile(.5)),
		figures.Counted(row(size, "requests"), titleAt(size, "requests of the hub for one more registration"), float64(c.Requests())/float64(g.Idle)),
		figures.Processor(row(size, "apiserver-cpu"), titleAt(size, "CPU of the API server for one more registration"), c.apiServerCPU, g.Idle),
	)
	if err := g.heartbeatsSince(ctx, len(g.agents.Registered)-g.Idle); err != nil {
		return err
	}
	return g.settled(ctx, size)
}

// heartbeatsSince sends the first heartbeats of the agents from a number on.
func (g *growing) heartbeatsSince(ctx context.Context, first int) error {
	_, err := g.agents.Beat(ctx, sim.Numbers(first, len(g.agents.Registered)-first), sim.Beats{Limit: g.InFlight})
	return err
}

// settled measures a hub with all its clusters: memory, the database, an idle hub, a restart, and heartbeats.
func (g *growing) settled(ctx context.Context, size int) error {
	if _, err := g.awaitQuiet(ctx); err != nil {
		return err
	}
	used, err := usageOf(g.hub.pid())
	if err != nil {
		return err
	}
	database, err := g.databaseSize(ctx)
	if err != nil {
		return err
	}
	g.add(
		figures.Bytes(row(size, "memory"), titleAt(size, "peak memory of the hub"), used.peakMemory),
		figures.Bytes(row(size, "etcd"), titleAt(size, "size of etcd"), database),
	)

	idle, err := g.measure(ctx, func(ctx context.Context) error { return sim.Pause(ctx, g.Window) })
	if err != nil {
		return err
	}
	g.add(figures.Counted(row(size, "idle"), titleAt(size, fmt.Sprintf("requests of an idle hub in %s, without its Lease", g.Window)), float64(idle.Requests())))

	if err := g.restart(ctx, size); err != nil {
		return err
	}
	return g.heartbeats(ctx, size)
}

// restart restarts the hub and counts its requests until it is quiet again.
func (g *growing) restart(ctx context.Context, size int) error {
	if _, err := g.awaitQuiet(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := g.hub.restart(); err != nil {
		return err
	}
	c := cost{began: began}
	for c.Requests() == 0 { // the hub reads something when it starts, but perhaps later than quiet waits
		requests, err := g.awaitQuiet(ctx)
		if err != nil {
			return err
		}
		c.Counts = audit.Count(requests)
	}
	g.add(
		figures.Counted(row(size, "restart-writes"), titleAt(size, "writes after a restart"), float64(c.Writes)),
		figures.Counted(row(size, "restart-reads"), titleAt(size, "reads after a restart"), float64(c.Reads)).WithNote(c.PerItem(1)),
		figures.Seconds(row(size, "restart-settled"), titleAt(size, "from a restart to the hub's last request"), c.duration()),
	)
	return nil
}

// heartbeats measures at least 300 heartbeats of agents that have sent heartbeats before.
func (g *growing) heartbeats(ctx context.Context, size int) error {
	const enough = 300
	all := sim.Numbers(0, len(g.agents.Registered))
	rounds := (enough + len(all) - 1) / len(all)
	c, err := g.measure(ctx, func(ctx context.Context) error {
		for range rounds {
			// A heartbeat contains the time in seconds. A second one within the same second would change nothing.
			if err := sim.Pause(ctx, time.Until(time.Now().Truncate(time.Second).Add(time.Second))); err != nil {
				return err
			}
			if _, err := g.agents.Beat(ctx, all, sim.Beats{Limit: g.InFlight}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	sent := rounds * len(all)
	g.add(
		figures.Counted(row(size, "heartbeat-requests"), titleAt(size, fmt.Sprintf("requests of the hub after %d heartbeats", sent)), float64(c.Requests())).WithNote(c.PerItem(1)),
		figures.Processor(row(size, "heartbeat-cpu"), titleAt(size, "CPU of the hub for one heartbeat"), c.hubCPU, sent),
		figures.Processor(row(size, "heartbeat-apiserver-cpu"), titleAt(size, "CPU of the API server for one heartbeat"), c.apiServerCPU, sent),
	)
	return nil
}

// ratios compares figures at the largest size with those at the smallest. A cost that does not grow with the number of clusters is the same at
// both.
func ratios(all []figures.Figure, sizes []int) (found []figures.Figure) {
	first, last := slices.Min(sizes), slices.Max(sizes)
	if first == last {
		return nil
	}
	for _, what := range []string{"cpu", "apiserver-cpu", "heartbeat-apiserver-cpu"} {
		few, _ := figures.Find(all, row(first, what))
		many, _ := figures.Find(all, row(last, what))
		found = append(found, figures.Quotient("growth/"+what+"-ratio",
			fmt.Sprintf("growth/*/%s at %d clusters, divided by that at %d", what, last, first), many.Value, few.Value))
	}
	few, _ := figures.Find(all, row(first, "restart-reads"))
	many, _ := figures.Find(all, row(last, "restart-reads"))
	return append(found, figures.Counted("growth/more-restart-reads",
		fmt.Sprintf("additional reads after a restart at %d clusters, compared with %d", last, first), many.Value-few.Value))
}

// deleteTenth deletes a tenth of the clusters, at most 1,000, and waits until the hub is quiet.
func (g *growing) deleteTenth(ctx context.Context) error {
	total := len(g.agents.Registered)
	count := min(total/10, 1000)
	before, err := g.clusterCount(ctx, workspace)
	if err != nil {
		return err
	}
	c, err := g.measure(ctx, func(ctx context.Context) error {
		err := sim.InParallel(count, g.InFlight, func(n int) error {
			return g.Fleet.Clusters(workspace).Delete(ctx, g.agents.Registered[n].Cluster, metav1.DeleteOptions{})
		})
		if err != nil {
			return err
		}
		return g.awaitClusters(ctx, workspace, before-count)
	})
	if err != nil {
		return err
	}
	title := func(what string) string { return fmt.Sprintf("%d of %d clusters deleted: %s", count, total, what) }
	g.add(
		figures.Seconds("deletion/quiet", title("until the hub's last request"), c.duration()),
		figures.Counted("deletion/requests", title("requests of the hub for each"), float64(c.Requests())/float64(count)).WithNote(c.PerItem(count)),
		figures.Processor("deletion/cpu", title("CPU of the hub for each"), c.hubCPU, count),
	)
	return nil
}
