package bench

import (
	"context"
	"fmt"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"

	"github.com/muster-fleet/muster/pkg/crds"
)

// registrations measures an idle hub, then a storm, and beside them a plain client that makes the same writes, in the same
// minutes on the same API server.
func registrations(ctx context.Context, o Options) ([]Result, error) {
	w, err := newWorld(ctx, o)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.ensureKinds(ctx); err != nil {
		return nil, err
	}
	before, err := w.floors(ctx, o, "before")
	if err != nil {
		return nil, err
	}
	if err := w.startHub(ctx); err != nil {
		return nil, err
	}
	idle, err := w.oneAfterAnother(ctx, o)
	if err != nil {
		return nil, err
	}
	storm, rate, err := w.storm(ctx, o)
	if err != nil {
		return nil, err
	}
	w.stopHub()
	after, err := w.floors(ctx, o, "after")
	if err != nil {
		return nil, err
	}
	plain := (before + after) / 2
	share := atLeast("storm: share of the floor taken in the same minutes", rate/plain, "", 0.8)
	floor := shown("floor: registrations a second of a plain client (TokenRequest)", plain, "1/s")
	return append(append(idle, storm...), floor, share), nil
}

func (w *world) ensureKinds(ctx context.Context) error {
	client, err := apiextensions.NewForConfig(w.config)
	if err != nil {
		return err
	}
	return crds.Ensure(ctx, client)
}

// floors is how many registrations a second the plain client makes.
func (w *world) floors(ctx context.Context, o Options, run string) (float64, error) {
	f := &floor{world: w, run: "floor-" + run}
	count := o.Storm / 2
	began := time.Now()
	if _, err := f.storm(ctx, count, o.InFlight); err != nil {
		return 0, err
	}
	rate := perSecond(count, time.Since(began))
	fmt.Fprintf(o.Log, "floor (%s): %.1f registrations/s\n", run, rate)
	return rate, nil
}

// oneAfterAnother registers agents on an idle hub.
func (w *world) oneAfterAnother(ctx context.Context, o Options) ([]Result, error) {
	const count = 50
	a, err := w.newAgents(ctx, "idle")
	if err != nil {
		return nil, err
	}
	if err := a.listen(ctx); err != nil {
		return nil, err
	}
	took, err := a.storm(ctx, 0, count, 1)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Log, "idle: p50 %s, p99 %s\n", took.quantile(.5), took.quantile(.99))
	return []Result{atMost("idle hub: request to credential, p50 of 50", millis(took.quantile(.5)), "ms", 60)}, nil
}

// storm has all agents register at once.
func (w *world) storm(ctx context.Context, o Options) ([]Result, float64, error) {
	a, err := w.newAgents(ctx, "storm")
	if err != nil {
		return nil, 0, err
	}
	if err := a.listen(ctx); err != nil {
		return nil, 0, err
	}
	if _, err := w.quiet(ctx); err != nil {
		return nil, 0, err
	}
	before, err := w.usage()
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	took, err := a.storm(ctx, 0, o.Storm, o.InFlight)
	if err != nil {
		return nil, 0, err
	}
	rate := perSecond(o.Storm, time.Since(began))
	all, err := w.quiet(ctx)
	if err != nil {
		return nil, 0, err
	}
	after, err := w.usage()
	if err != nil {
		return nil, 0, err
	}
	fmt.Fprintf(o.Log, "storm: %.1f registrations/s, p99 %s\n", rate, took.quantile(.99))
	return stormResults(o.Storm, rate, took, countAll(all), before, after), rate, nil
}

func stormResults(n int, rate float64, took times, sent Requests, before, after usage) []Result {
	each := func(count int) float64 { return float64(count) / float64(n) }
	name := func(what string) string { return fmt.Sprintf("storm of %d: %s", n, what) }
	return []Result{
		atLeast(name("registrations a second"), rate, "1/s", 48),
		atMost(name("request to credential, p99"), took.quantile(.99).Seconds(), "s", 5),
		atMost(name("CPU of the hub per registration"), millis(after.cpu-before.cpu)/float64(n), "ms", 8),
		counted(name("writes per registration"), each(sent.Writes), "", 15),
		counted(name("reads per registration"), each(sent.Reads), "", 2),
		counted(name("failed requests"), float64(sent.Failed), "", 0),
		atMost(name("most memory of the hub"), float64(after.peak)/mebibyte, "MiB", 120),
		{Row: name("requests by kind"), Note: kinds(sent, n), Bound: -1},
	}
}
