package bench

import (
	"context"
	"time"
)

// throttled measures a hub whose controller manager sends 20 requests a second, as it does unless it is told otherwise. A hub
// that needs it for every registration is no faster.
func throttled(ctx context.Context, o Options) ([]Result, error) {
	const count = 100
	w, err := newWorld(ctx, o, "--kube-api-qps=20", "--kube-api-burst=30")
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.startHub(ctx); err != nil {
		return nil, err
	}
	a, err := w.newAgents(ctx, "throttled")
	if err != nil {
		return nil, err
	}
	if err := a.listen(ctx); err != nil {
		return nil, err
	}
	if _, err := w.quiet(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := a.storm(ctx, 0, count, count); err != nil {
		return nil, err
	}
	rate := perSecond(count, time.Since(began))
	return []Result{atLeast("100 at once, controller manager at 20 requests a second: registrations a second", rate, "1/s", 45)}, nil
}
