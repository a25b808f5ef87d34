package bench

import (
	"context"
	"os"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/bench/usage"
	"github.com/muster-fleet/muster/pkg/crds"
)

// floor is how many registrations a plain client makes, in two ways, and the processor time it needs for one.
type floor struct {
	requests, secrets float64 // registrations a second, by TokenRequest and by token Secrets
	cpu               float64 // milliseconds, by TokenRequest
}

// takeFloor takes it on an API server of its own: what is left of it would be work for a hub.
func takeFloor(ctx context.Context, o Options) (f floor, err error) {
	w, err := newWorld(ctx, o, flavour{})
	if err != nil {
		return f, err
	}
	defer w.close()
	client, err := apiextensions.NewForConfig(w.Config)
	if err != nil {
		return f, err
	}
	if err := crds.Ensure(ctx, client); err != nil {
		return f, err
	}
	if err := w.served(ctx); err != nil {
		return f, err
	}
	return w.floor(ctx)
}

// cpuInFloors is the CPU of the hub for a registration in terms of the plain client's: how much of either a processor does in
// a millisecond does not matter then.
func cpuInFloors(s storm, plain float64) figures.Figure {
	return figures.Figure{
		Row: "storm/cpu-in-floors", Title: "CPU of the hub for a registration, in terms of the plain client's", Value: s.cpu() / plain, Kind: figures.Ratio,
	}
}

func (w *world) floor(ctx context.Context) (f floor, err error) {
	const half, quarter = 2, 4
	if _, _, err = w.plain(ctx, "warm-up", w.Storm/quarter, false); err != nil { // an API server that was just started is slow
		return f, err
	}
	if f.requests, f.cpu, err = w.plain(ctx, "requests", w.Storm/half, false); err != nil {
		return f, err
	}
	if f.secrets, _, err = w.plain(ctx, "secrets", w.Storm/half, true); err != nil {
		return f, err
	}
	w.say("floor: %.1f registrations/s by TokenRequest, %.1f by token Secrets", f.requests, f.secrets)
	return f, nil
}

// plain is how many registrations a second the plain client makes, and the milliseconds of this process for each.
func (w *world) plain(ctx context.Context, run string, count int, secrets bool) (rate, cpu float64, err error) {
	before, err := usage.Of(os.Getpid())
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if _, err := (sim.Floor{API: w.API, Run: "floor-" + run, Secrets: secrets}).Register(ctx, count, w.InFlight); err != nil {
		return 0, 0, err
	}
	rate = figures.PerSecond(count, time.Since(began))
	after, err := usage.Of(os.Getpid())
	return rate, figures.Each(figures.Millis(after.CPU-before.CPU), count), err
}

// and is the mean of two.
func (f floor) and(g floor) floor {
	mean := func(a, b float64) float64 { return (a + b) / 2 }
	return floor{requests: mean(f.requests, g.requests), secrets: mean(f.secrets, g.secrets), cpu: mean(f.cpu, g.cpu)}
}

// figures holds a storm against the floor.
func (f floor) figures(s storm) []figures.Figure {
	share := func(row, title string, of float64) figures.Figure {
		return figures.Figure{Row: row, Title: title, Value: s.rate / of, Kind: figures.Ratio, MoreIsBetter: true}
	}
	return []figures.Figure{
		rated("floor/token-request", "a plain client that makes the same writes, by TokenRequest: registrations a second", f.requests),
		rated("floor/token-secret", "the same, by token Secrets", f.secrets),
		share("storm/share-of-floor", "registrations a second, in terms of the plain client's", f.requests),
		share("storm/share-of-secret-floor", "the same, in terms of the plain client's by token Secrets", f.secrets),
		cpuInFloors(s, f.cpu),
	}
}
