package bench

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// growth measures what one more registration, an idle hub, a restart and deletions cost as the hub grows.
func growth(ctx context.Context, o Options) ([]Result, error) {
	w, err := newWorld(ctx, o)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.startHub(ctx); err != nil {
		return nil, err
	}
	a, err := w.newAgents(ctx, "grow")
	if err != nil {
		return nil, err
	}
	if err := a.listen(ctx); err != nil {
		return nil, err
	}
	g := &growing{world: w, agents: a, options: o}
	var all []Result
	for _, size := range o.Sizes {
		results, err := g.at(ctx, size)
		if err != nil {
			return all, err
		}
		all = append(all, results...)
	}
	deleted, err := g.deletions(ctx)
	return append(all, deleted...), err
}

type growing struct {
	*world
	agents  *agents
	options Options
	count   int // registered so far
}

func (g *growing) at(ctx context.Context, size int) ([]Result, error) {
	if _, err := g.agents.storm(ctx, g.count, size-g.count, g.options.InFlight); err != nil {
		return nil, err
	}
	g.count = size
	fmt.Fprintf(g.options.Log, "%d clusters registered\n", size)
	more, err := g.oneMore(ctx)
	if err != nil {
		return nil, err
	}
	idle, err := g.idle(ctx)
	if err != nil {
		return nil, err
	}
	restart, err := g.restart(ctx)
	return append(append(more, idle...), restart...), err
}

func (g *growing) name(what string) string { return fmt.Sprintf("%d clusters: %s", g.count, what) }

// oneMore registers a few more, one after the other, on a hub that does nothing else.
func (g *growing) oneMore(ctx context.Context) ([]Result, error) {
	const count = 50
	if _, err := g.quiet(ctx); err != nil {
		return nil, err
	}
	before, err := g.usage()
	if err != nil {
		return nil, err
	}
	name := g.name("CPU of the hub for one more registration")
	took, err := g.agents.storm(ctx, g.count, count, 1)
	if err != nil {
		return nil, err
	}
	g.count += count
	if _, err := g.quiet(ctx); err != nil {
		return nil, err
	}
	after, err := g.usage()
	return []Result{
		atMost(name, millis(after.cpu-before.cpu)/count, "ms", 10),
		shown(g.name("one more, p50"), millis(took.quantile(.5)), "ms"),
		{Row: g.name("most memory of the hub"), Value: float64(after.peak) / mebibyte, Unit: "MiB", Bound: memoryBound(g.count)},
	}, err
}

func memoryBound(clusters int) float64 {
	switch {
	case clusters < 2000:
		return 120
	case clusters < 20000:
		return 400
	}
	return -1
}

// idle counts what a hub sends to which nothing happens.
func (g *growing) idle(ctx context.Context) ([]Result, error) {
	const window = 10 * time.Second
	if _, err := g.quiet(ctx); err != nil {
		return nil, err
	}
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	all, err := g.audit.since(byAgent(hubAgent))
	r := countAll(all)
	return []Result{counted(g.name("requests in 10 s of idleness"), float64(r.Writes+r.Reads), "", 0)}, err
}

// restart stops the hub and counts what it sends until it is quiet again.
func (g *growing) restart(ctx context.Context) ([]Result, error) {
	g.stopHub()
	if _, err := g.audit.since(byAgent(hubAgent)); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := g.startHub(ctx); err != nil {
		return nil, err
	}
	all, err := g.quiet(ctx)
	if err != nil {
		return nil, err
	}
	last := began
	for _, s := range all {
		if (s.isWrite() || s.isRead()) && s.Answered.After(last) {
			last = s.Answered
		}
	}
	r := countAll(all)
	return []Result{
		counted(g.name("writes after a restart"), float64(r.Writes), "", 0),
		shown(g.name("reads after a restart"), float64(r.Reads), ""),
		atMost(g.name("restart to the last request"), last.Sub(began).Seconds(), "s", 2.5),
	}, nil
}

// deletions deletes a tenth of the clusters, at most 1000, and waits until nothing of them is left.
func (g *growing) deletions(ctx context.Context) ([]Result, error) {
	clusters, err := g.fleet.Clusters(workspace).List(ctx, metav1.ListOptions{Limit: int64(min(g.count/10, 1000))})
	if err != nil {
		return nil, err
	}
	before, err := g.usage()
	if err != nil {
		return nil, err
	}
	if _, err := g.quiet(ctx); err != nil {
		return nil, err
	}
	count, began := len(clusters.Items), time.Now()
	err = inParallel(count, g.options.InFlight, func(n int) error {
		return g.fleet.Clusters(workspace).Delete(ctx, clusters.Items[n].Name, metav1.DeleteOptions{})
	})
	if err != nil {
		return nil, err
	}
	all, err := g.quiet(ctx)
	if err != nil {
		return nil, err
	}
	after, err := g.usage()
	last := began
	for _, s := range all {
		if s.Answered.After(last) {
			last = s.Answered
		}
	}
	r := countAll(all)
	name := func(what string) string { return fmt.Sprintf("%d of %d clusters deleted: %s", count, g.count, what) }
	return []Result{
		atMost(name("time to the last request"), last.Sub(began).Seconds(), "s", 5),
		counted(name("requests, each"), float64(r.Writes+r.Reads)/float64(count), "", 14),
		atMost(name("CPU of the hub, each"), millis(after.cpu-before.cpu)/float64(count), "ms", 15),
		{Row: name("requests by kind"), Note: kinds(r, count), Bound: -1},
	}, err
}
