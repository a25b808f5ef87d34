// Package matching limits the share of the CPUs that one workspace takes to match selectors and to render Helm values.
package matching

import (
	"context"
	"fmt"
	"runtime"
	"sync"
)

// Limiter lets passes over the objects of one workspace match selectors, or render Helm values, on half of the CPUs at the same time; other passes of
// that workspace wait. The work queues limit the number of passes of a workspace, but not their CPU time, and with many selectors a pass takes tenths of a
// second: with fifty of them, each step of another workspace would wait for fifty others. The zero value is ready to use.
type Limiter struct {
	mu          sync.Mutex
	byWorkspace map[string]*share // of the workspaces with passes that match or wait
}

type share struct {
	passes int
	cpus   chan struct{}
}

// Begin waits until a pass over the workspace may match selectors, until it calls end. If ctx ends before, it returns an error, and an end that
// does nothing. A pass must not call Begin twice without an end between.
func (l *Limiter) Begin(ctx context.Context, workspace string) (end func(), err error) {
	s := l.join(workspace)
	select {
	case s.cpus <- struct{}{}:
		return func() {
			<-s.cpus
			l.leave(workspace, s)
		}, nil
	case <-ctx.Done():
		l.leave(workspace, s)
		return func() {}, fmt.Errorf("waiting for other passes over workspace %s that match selectors or render Helm values: %w", workspace, ctx.Err())
	}
}

func (l *Limiter) join(workspace string) *share {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.byWorkspace[workspace]
	if s == nil {
		if l.byWorkspace == nil {
			l.byWorkspace = map[string]*share{}
		}
		s = &share{cpus: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
		l.byWorkspace[workspace] = s
	}
	s.passes++
	return s
}

func (l *Limiter) leave(workspace string, s *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.passes--; s.passes == 0 {
		delete(l.byWorkspace, workspace)
	}
}
