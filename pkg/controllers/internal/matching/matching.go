// Package matching limits the share of the CPUs that one workspace takes to match selectors.
package matching

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// share divides the CPU time of the machine into the part that one workspace gets in the long run.
	share = 8
	// advance is the time for which a workspace may take its part beforehand. A start of the hub, or one change of many objects, is not
	// delayed.
	advance = 40 * time.Second
)

// Limiter limits the passes that match selectors with the objects of one workspace. At the same time, they take at most half of the CPUs.
// While several workspaces have such passes, those of one workspace take an eighth of the CPU time in the long run. Further passes of the
// workspace wait.
//
// The work queues limit the number of passes of a workspace, but not their CPU time, and with many selectors a pass takes tenths of a second. A
// tenant who changes such objects without a pause would otherwise slow down each step of the other workspaces.
type Limiter struct {
	Clock clock.Clock

	mu          sync.Mutex
	byWorkspace map[string]*cpuUse // of the workspaces with passes now, or within advance
}

// cpuUse is the use of CPUs by the passes of one workspace.
type cpuUse struct {
	passes int // that match or wait
	cpus   chan struct{}
	last   time.Time // the end of the last pass
	// paid is the time at which the part of the workspace reaches the CPU time of its passes.
	paid time.Time
}

// Begin waits until a pass over the workspace may match selectors, until it calls end. It returns an error if ctx ends before. A pass must not
// call Begin twice without an end between.
func (l *Limiter) Begin(ctx context.Context, workspace string) (end func(), err error) {
	u := l.join(workspace)
	select {
	case u.cpus <- struct{}{}:
	case <-ctx.Done():
		l.leave(u, 0)
		return nil, waited(ctx, workspace)
	}
	if pause := l.pause(u); pause > 0 {
		select {
		case <-l.Clock.After(pause):
		case <-ctx.Done():
			l.leave(u, 0)
			<-u.cpus
			return nil, waited(ctx, workspace)
		}
	}
	began := l.Clock.Now()
	return func() {
		l.leave(u, l.Clock.Since(began))
		<-u.cpus
	}, nil
}

func waited(ctx context.Context, workspace string) error {
	return fmt.Errorf("waiting for other passes over workspace %s that match selectors: %w", workspace, ctx.Err())
}

// join adds a pass to the cpuUse of its workspace, and drops that of workspaces that have had none for a while.
func (l *Limiter) join(workspace string) *cpuUse {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, u := range l.byWorkspace {
		if u.passes == 0 && l.Clock.Since(u.last) > advance && l.Clock.Now().After(u.paid) {
			delete(l.byWorkspace, other)
		}
	}
	u := l.byWorkspace[workspace]
	if u == nil {
		if l.byWorkspace == nil {
			l.byWorkspace = map[string]*cpuUse{}
		}
		u = &cpuUse{cpus: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
		l.byWorkspace[workspace] = u
	}
	u.passes++
	return u
}

// pause is the time until a pass may begin that has one of the CPUs of its workspace.
func (l *Limiter) pause(u *cpuUse) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOnly() {
		return 0
	}
	return u.paid.Add(-advance).Sub(l.Clock.Now())
}

// isOnly reports whether no other workspace has had passes within advance.
func (l *Limiter) isOnly() bool { return len(l.byWorkspace) == 1 }

// leave ends a pass that took a CPU for this time.
func (l *Limiter) leave(u *cpuUse, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u.passes--
	u.last = l.Clock.Now()
	if began := u.last.Add(-took); u.paid.Before(began) {
		u.paid = began
	}
	u.paid = u.paid.Add(took * share / time.Duration(runtime.GOMAXPROCS(0)))
	if most := u.last.Add(advance); l.isOnly() && u.paid.After(most) {
		u.paid = most // it need not make up for what it took while nobody else wanted any
	}
}
