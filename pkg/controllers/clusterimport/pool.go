package clusterimport

import (
	"context"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

const (
	// freshSlots is how many members are called at once that have not failed. A member that accepts connections and never
	// answers holds one until callTimeout, so there are many.
	freshSlots = 256
	// failedSlots is how many members are called at once that failed the last time. They have slots of their own: a
	// thousand unreachable members must not delay one that works.
	failedSlots = 32
	// callTimeout bounds everything one attempt does on a member.
	callTimeout = time.Minute
)

// call is one attempt on a member. It must return when its context ends.
type call func(context.Context) callResult

// callResult is what an attempt came to: done, or why not.
type callResult struct {
	failure *failure
}

// attempt is what the pool knows of the last call for a Cluster.
type attempt struct {
	inputs  string // what it was made with; other inputs make another attempt
	running bool
	result  callResult // of the call before, while one that failed is tried again
	retryAt time.Time
	cancel  context.CancelFunc
	ended   chan struct{} // closed when it runs no more
}

// problem is what a call came to that failed, and nil for one that did not, or is made for the first time. The Cluster is looked
// at again when it is time to try again; while that runs its end brings the Cluster back.
func (a attempt) problem(now time.Time) *result.Result {
	if a.result.failure == nil {
		return nil
	}
	out := result.Stalled(a.result.failure.reason, a.result.failure.message)
	if !a.running {
		out = out.In(max(a.retryAt.Sub(now), time.Millisecond))
	}
	return &out
}

// pool runs calls to members, one at a time for each Cluster.
type pool struct {
	ctx     context.Context
	clock   clock.Clock
	backoff app.Backoff
	notify  func(types.NamespacedName)

	fresh, failed chan struct{}
	running       sync.WaitGroup
	turns         turns

	mu       sync.Mutex
	attempts map[types.NamespacedName]*attempt
	delays   map[types.NamespacedName]*wait.Backoff
}

func newPool(ctx context.Context, clk clock.Clock, backoff app.Backoff, notify func(types.NamespacedName)) *pool {
	return &pool{
		ctx: ctx, clock: clk, backoff: backoff, notify: notify,
		fresh:    make(chan struct{}, freshSlots),
		failed:   make(chan struct{}, failedSlots),
		attempts: map[types.NamespacedName]*attempt{},
		delays:   map[types.NamespacedName]*wait.Backoff{},
	}
}

// attempt returns the state of the call with these inputs, and starts it if there is none or its time to be tried again
// has come. A call with other inputs that still runs is left to end first; its end brings the Cluster back.
func (p *pool) attempt(key types.NamespacedName, inputs string, run call) attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.attempts[key]
	if last != nil && (last.running || last.inputs == inputs && p.settled(last)) {
		return *last
	}
	lane := p.fresh
	ctx, cancel := context.WithCancel(p.ctx)
	started := &attempt{inputs: inputs, running: true, cancel: cancel, ended: make(chan struct{})}
	if last != nil && last.inputs == inputs {
		// What is wrong stays on the object until it is known to be right: each retry would otherwise be two writes and an
		// event.
		lane, started.result = p.failed, last.result
	} else {
		delete(p.delays, key)
	}
	p.attempts[key] = started
	p.running.Go(func() { p.run(ctx, key, started, lane, run) })
	return *started
}

// last returns the state of the call with these inputs, without making one.
func (p *pool) last(key types.NamespacedName, inputs string) (last attempt, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.attempts[key]; a != nil && a.inputs == inputs {
		return *a, true
	}
	return attempt{}, false
}

// busy says whether a call is under way.
func (p *pool) busy(key types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.attempts[key]
	return a != nil && a.running
}

// settled says whether nothing is to be done: it worked, or it is too early to try again.
func (p *pool) settled(a *attempt) bool {
	return a.result.failure == nil || p.clock.Now().Before(a.retryAt)
}

func (p *pool) run(ctx context.Context, key types.NamespacedName, a *attempt, lane chan struct{}, run call) {
	defer close(a.ended)
	defer a.cancel()
	result := inLane(ctx, lane, run)

	p.mu.Lock()
	a.running, a.result = false, result
	switch {
	case ctx.Err() != nil:
		p.drop(key, a)
	case result.failure != nil:
		a.retryAt = p.clock.Now().Add(p.nextDelay(key))
	}
	p.mu.Unlock()
	if p.ctx.Err() == nil {
		p.notify(clusterOf(key))
	}
}

// inLane makes the call when there is a slot for it, unless it is cancelled before.
func inLane(ctx context.Context, lane chan struct{}, run call) callResult {
	select {
	case lane <- struct{}{}:
		defer func() { <-lane }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return callResult{}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return guarded(ctx, run)
}

// drop forgets a call, unless there is another by now.
func (p *pool) drop(key types.NamespacedName, a *attempt) {
	if p.attempts[key] == a {
		delete(p.attempts, key)
		delete(p.delays, key)
	}
}

// guarded turns a panic into a failure: a mistake about one member must not end the program, which may be somebody else's
// server.
func guarded(ctx context.Context, run call) (result callResult) {
	defer func() {
		if cause := recover(); cause != nil {
			logrus.Errorf("A call to a member panicked: %v\n%s", cause, debug.Stack())
			result = callResult{failure: failed(fleet.ReasonError, "the hub made a mistake, see its log; it is tried again")}
		}
	}()
	return run(ctx)
}

func (p *pool) nextDelay(key types.NamespacedName) time.Duration {
	delay := p.delays[key]
	if delay == nil {
		const doublings = 20
		delay = &wait.Backoff{Duration: p.backoff.Base, Factor: 2, Jitter: 0.2, Steps: doublings, Cap: p.backoff.Max}
		p.delays[key] = delay
	}
	return delay.Step()
}

// forget drops what is known of a Cluster whose call has been taken note of, or that is gone.
func (p *pool) forget(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.attempts[key]; a != nil && a.running {
		return
	}
	delete(p.attempts, key)
	delete(p.delays, key)
}

// cancel ends a call that nobody wants any more, and forgets it at its end. One that waits for a slot or a turn is not made.
func (p *pool) cancel(key types.NamespacedName) {
	p.mu.Lock()
	a := p.attempts[key]
	p.mu.Unlock()
	if a != nil {
		a.cancel()
	}
	p.forget(key)
}

// forgetAll drops everything about a Cluster that is gone: an import that still waits would install its agent.
func (p *pool) forgetAll(key string) {
	namespace, name := kv.RSplit(key, "/")
	p.cancel(types.NamespacedName{Namespace: namespace, Name: name})
	p.cancel(types.NamespacedName{Namespace: namespace, Name: name + clean})
}

func (p *pool) wait() { p.running.Wait() }

// clean marks the key of a Cluster's clean-up, which runs beside its import.
const clean = "/clean"

// clusterOf is the Cluster a call was for; names of objects have no slash.
func clusterOf(key types.NamespacedName) types.NamespacedName {
	key.Name = strings.TrimSuffix(key.Name, clean)
	return key
}
