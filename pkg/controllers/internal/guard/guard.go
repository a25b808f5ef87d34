// Package guard bounds the passes of controllers: in time, in what a mistake can break, and by the life of the hub.
package guard

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/runtime"
)

// passTimeout bounds one pass, so that an API server that accepts and never answers holds no worker.
const passTimeout = 30 * time.Second

// Passes are the passes of one hub's controllers. The work queues do not wait for their workers when they are stopped;
// Passes do, so that a hub that has ended writes no more and another may begin.
type Passes struct {
	ctx context.Context

	mu      sync.Mutex
	running sync.WaitGroup
}

// NewPasses returns Passes that begin none any more when ctx has ended.
func NewPasses(ctx context.Context) *Passes { return &Passes{ctx: ctx} }

// Context is for one pass: it ends with the hub, and after 30 seconds.
func (p *Passes) Context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(p.ctx, passTimeout)
}

// Wait returns when the last pass has ended. Call it when ctx has ended.
func (p *Passes) Wait() {
	p.mu.Lock() // whoever is about to begin has begun, or sees that ctx has ended
	defer p.mu.Unlock()
	p.running.Wait()
}

func (p *Passes) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.running.Add(1)
	return true
}

// Handler has the handler's calls count as passes. A panic becomes an error: a mistake about one object must not end the
// program, which may be somebody else's server, and the object is tried again with backoff like after any other error.
func Handler[T runtime.Object](p *Passes, name string, handle generic.ObjectHandler[T]) generic.ObjectHandler[T] {
	return func(key string, object T) (result T, err error) {
		if !p.begin() {
			return object, nil
		}
		defer p.running.Done()
		defer func() {
			if cause := recover(); cause != nil {
				logrus.Errorf("Handler %s panicked on %s: %v\n%s", name, key, cause, debug.Stack())
				result, err = object, fmt.Errorf("handler %s panicked: %v", name, cause)
			}
		}()
		return handle(key, object)
	}
}
