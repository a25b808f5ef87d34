package bench

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// deletions deletes the first so many clusters at once, and waits until nothing more happens.
func (g *growing) deletions(ctx context.Context, count int) ([]figures.Figure, error) {
	c, err := g.costOf(ctx, func(ctx context.Context) error { return g.remove(ctx, count) })
	if err != nil {
		return nil, err
	}
	of := func(what string) string {
		return titled("%d of %d clusters deleted: %s", count, len(g.agents.Members()), what)
	}
	requests := counted("deletion/requests", of("requests of the hub for each"), figures.Each(c.All(), count))
	requests.Note = c.Each(count)
	return []figures.Figure{
		timed("deletion/quiet", of("until the hub's last request"), c.until().Seconds(), "s"),
		requests,
		{Row: "deletion/cpu", Title: of("CPU of the hub for each"), Value: figures.Each(figures.Millis(c.cpu), count), Unit: "ms", Kind: figures.CPU},
	}, nil
}

// remove deletes clusters and waits until they are gone.
func (g *growing) remove(ctx context.Context, count int) error {
	clusters := g.Fleet.Clusters(workspace)
	members := g.agents.Members()
	before, err := g.count(ctx)
	if err != nil {
		return err
	}
	err = sim.InParallel(count, g.InFlight, func(n int) error {
		return clusters.Delete(ctx, members[n].Cluster, metav1.DeleteOptions{})
	})
	if err != nil {
		return err
	}
	const (
		every = 100 * time.Millisecond
		most  = 30 * time.Minute
	)
	ctx, cancel := context.WithTimeoutCause(ctx, most, errors.New("the clusters are not gone"))
	defer cancel()
	for left := before; left > before-count; {
		if err := sim.Pause(ctx, every); err != nil {
			return err
		}
		if left, err = g.count(ctx); err != nil {
			return err
		}
	}
	return nil
}

// count is how many clusters there are. The API server counts them without listing them.
func (w *world) count(ctx context.Context) (int, error) {
	some, err := w.Fleet.Clusters(workspace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	count := len(some.Items)
	if more := some.RemainingItemCount; more != nil {
		count += int(*more)
	}
	return count, nil
}
