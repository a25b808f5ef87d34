package clusterimport

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// firstSlots is the number of concurrent installations that are no retries. A member that accepts connections and
	// never answers occupies a slot until callTimeout, so there are many slots.
	firstSlots, firstPerWorkspace = 256, 64
	// removalSlots is the number of concurrent removals and checks of the owner, and their retries. A removal must not wait for imports: the hub gives the
	// one of a deleted Cluster half a minute.
	removalSlots, removalsPerWorkspace = 64, 32
	// retrySlots is the number of concurrent retries of failed installations. Retries have slots of their own, so that a thousand
	// unreachable members do not delay a member that works.
	retrySlots, retriesPerWorkspace = 64, 32
	// callTimeout limits one call.
	callTimeout = time.Minute
	// prepareTimeout is how long a slot stays reserved for a call that no pass begins. A pass takes 30 seconds at most.
	prepareTimeout = time.Minute
)

// A callKey identifies the calls of which at most one runs at a time.
type callKey struct {
	cluster types.NamespacedName
	purpose purpose
}

type purpose string

const (
	installing purpose = "install"
	removing   purpose = "remove"
	// checkingOwner asks which Cluster the agent on the member of a deleted Cluster belongs to.
	checkingOwner purpose = "check owner"
)

// memberCall is the last call with one key. A call is a function that sends requests to a member; it returns when its context ends.
type memberCall struct {
	inputs       string // a digest of everything that determines the call; other inputs are another call
	state        callState
	wanted       bool                                // the current pass, or the last one, asked for the call; otherwise endPass withdraws it
	prepareTimer clock.Timer                         // fires if no pass begins the call that has a slot
	start        chan func(context.Context) *failure // takes the function to run in the slot
	failure      *failure                            // while a failed call is retried, the failure of the previous try
	retryAt      time.Time
	backoff      *wait.Backoff
	cancel       context.CancelFunc
}

// callState is the state of a call. While the call waits or is offered a slot, nothing is rendered for it, and its goroutine has only its key and
// the digest of its inputs: a workspace may have thousands of such calls.
type callState int

const (
	absent    callState = iota
	waiting             // for a slot
	offered             // it has a slot, and the Cluster is enqueued: the next pass prepares the call
	preparing           // a pass prepares the call
	running             // it sends requests
	ended               // failure is nil if it succeeded; a retry that was withdrawn before it began keeps the failure of the earlier attempt
)

// isPending reports whether the call has not ended.
func (s callState) isPending() bool { return s != absent && s != ended }

// due reports whether a failed call must be started again, because retryAt has passed.
func (c memberCall) due(now time.Time) bool {
	return c.state == ended && c.failure != nil && !now.Before(c.retryAt)
}

// failed returns the result of a failed call; ok is false if the call succeeded, or runs for the first time. While a retry
// runs, the result has no requeue time: the end of the retry enqueues the Cluster.
func (c memberCall) failed(now time.Time) (out result.Result, ok bool) {
	if c.failure == nil {
		return out, false
	}
	out = c.failure.stalled()
	if c.failure.isTransient {
		out.Message += "; retrying"
	}
	if c.state == ended {
		out = out.In(max(c.retryAt.Sub(now), time.Millisecond))
	}
	return out, true
}

// memberCalls runs calls to members beside the workers of the controller. Within pass, a pass over a Cluster reserves a slot for a call with some
// inputs. If the returned state is preparing, the pass has the slot: it prepares the call and begins it. Otherwise the Cluster is enqueued when
// the call gets a slot, and when it has ended.
type memberCalls struct {
	ctx     context.Context
	clock   clock.Clock
	backoff app.Backoff
	enqueue func(cluster types.NamespacedName) // called when a call has ended, and when one gets the slot that it waited for

	first, retries, removals *slots
	large                    workspaceSemaphores // for large responses, of which a workspace may have largeResponses in memory
	goroutines               sync.WaitGroup
	members                  memberLocks

	mu    sync.Mutex
	byKey map[callKey]*memberCall
}

func newMemberCalls(ctx context.Context, clk clock.Clock, backoff app.Backoff, enqueue func(types.NamespacedName)) *memberCalls {
	return &memberCalls{
		ctx: ctx, clock: clk, backoff: backoff, enqueue: enqueue,
		first:   newSlots(firstSlots, firstPerWorkspace),
		retries: newSlots(retrySlots, retriesPerWorkspace), removals: newSlots(removalSlots, removalsPerWorkspace),
		byKey: map[callKey]*memberCall{},
	}
}

// state returns the state of the last call with this key.
func (c *memberCalls) state(key callKey) callState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.byKey[key]; call != nil {
		return call.state
	}
	return absent
}

// stateUnlessFailed returns the state of the last call with this key; absent if its last try has failed, unless a retry runs or a pass prepares it.
func (c *memberCalls) stateUnlessFailed(key callKey) callState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.byKey[key]; call != nil && (call.failure == nil || call.state == preparing || call.state == running) {
		return call.state
	}
	return absent
}

// find returns the call with these inputs and marks it as wanted by the pass. A call to which a slot is offered is not marked: reserve marks it, and if
// the pass does not reserve it, endPass frees its slot. A call with other inputs is absent.
func (c *memberCalls) find(key callKey, inputs string) memberCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.byKey[key]
	if call == nil || call.inputs != inputs {
		return memberCall{}
	}
	call.wanted = call.wanted || call.state != offered
	return *call
}

// reserve returns the call with these inputs. If there is none, or if it has failed and is due, it takes a slot for it. A pending call with
// other inputs is returned instead: it is not interrupted, and its end enqueues the Cluster.
func (c *memberCalls) reserve(key callKey, inputs string) memberCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.byKey[key]
	if last != nil {
		last.wanted = true
	}
	same := last != nil && last.inputs == inputs
	switch {
	case last != nil && last.state == offered:
		if !same {
			last.inputs, last.failure, last.backoff = inputs, nil, c.newBackoff()
		}
		last.state = preparing
		last.prepareTimer.Reset(prepareTimeout) // the pass may have come late
		return *last
	case last != nil && last.state.isPending() || same && !last.due(c.clock.Now()):
		return *last
	}
	ctx, cancel := context.WithCancel(c.ctx)
	next, from := &memberCall{
		inputs: inputs, state: waiting, wanted: true, cancel: cancel, backoff: c.newBackoff(), start: make(chan func(context.Context) *failure, 1),
	}, c.first
	if same {
		// Keep reporting the failure until the retry has succeeded; otherwise each retry would write the status twice and
		// emit an event.
		next.failure, next.backoff, from = last.failure, last.backoff, c.retries
	}
	if key.purpose != installing {
		from = c.removals
	}
	hasSlot := from.tryAcquire(key.cluster.Namespace)
	if hasSlot {
		next.state, next.prepareTimer = preparing, c.clock.NewTimer(prepareTimeout)
	}
	c.byKey[key] = next
	c.goroutines.Go(func() { c.run(ctx, key, next, from, hasSlot) })
	return *next
}

// begin runs do in the slot that the pass has reserved. It does nothing if the pass has none.
func (c *memberCalls) begin(key callKey, do func(context.Context) *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.byKey[key]; call != nil && call.state == preparing {
		call.state = running
		call.start <- do
	}
}

// pass runs one pass over a Cluster, which may make calls with these keys. Afterwards it frees the slots of calls that the pass has not begun:
// the pass could not prepare them, because it returned early or panicked. It also withdraws calls that wait for a slot, or have been offered
// one, if the pass did not ask for them: the Cluster no longer needs them. After a pass that failed they stay, because its repetition may ask
// for them.
func (c *memberCalls) pass(run func() error, keys ...callKey) error {
	c.mu.Lock()
	for _, key := range keys {
		if call := c.byKey[key]; call != nil {
			call.wanted = false
		}
	}
	c.mu.Unlock()
	failed := true
	defer func() {
		for _, key := range keys {
			c.endPass(key, failed)
		}
	}()
	err := run()
	failed = err != nil
	return err
}

func (c *memberCalls) endPass(key callKey, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.byKey[key]
	if call == nil {
		return
	}
	unwanted := !call.wanted && !failed
	switch {
	case call.state == preparing, call.state == offered && unwanted:
		close(call.start)
		c.withdraw(key, call)
	case call.state == waiting && unwanted:
		call.cancel()
	}
}

// withdraw ends a call that waits for a slot or is being prepared: it has sent nothing yet. If it is a retry, the failure of the earlier attempt stays,
// and the retry is due again. The caller holds the lock.
func (c *memberCalls) withdraw(key callKey, call *memberCall) {
	call.state, call.retryAt = ended, c.clock.Now()
	if call.failure == nil && c.byKey[key] == call {
		delete(c.byKey, key)
	}
}

func (c *memberCalls) newBackoff() *wait.Backoff {
	const doublings = 20
	return &wait.Backoff{Duration: c.backoff.Base, Factor: 2, Jitter: 0.2, Steps: doublings, Cap: c.backoff.Max}
}

// run waits for a slot, unless the call has one, offers it to the next pass over the Cluster, and runs the function that a pass begins.
func (c *memberCalls) run(ctx context.Context, key callKey, call *memberCall, slots *slots, hasSlot bool) {
	defer call.cancel()
	if !hasSlot && slots.acquire(ctx, key.cluster.Namespace) {
		hasSlot = true
		c.mu.Lock()
		call.state, call.prepareTimer = offered, c.clock.NewTimer(prepareTimeout)
		c.mu.Unlock()
		if ctx.Err() == nil {
			c.enqueue(key.cluster)
		}
	}
	var do func(context.Context) *failure
	var problem *failure
	expired := false
	if hasSlot {
		if do, expired = c.awaitBegin(ctx, key, call); do != nil {
			problem = c.runInSlot(ctx, key, do)
		}
		slots.release(key.cluster.Namespace)
	}
	hasBegun := do != nil

	c.mu.Lock()
	if hasBegun {
		call.state, call.failure = ended, problem
		if problem != nil {
			call.retryAt = c.clock.Now().Add(call.backoff.Step())
		}
	} else if call.state.isPending() {
		c.withdraw(key, call)
	}
	if ctx.Err() != nil && c.byKey[key] == call {
		delete(c.byKey, key)
	}
	c.mu.Unlock()
	if c.ctx.Err() == nil && (hasBegun || expired || ctx.Err() != nil) {
		c.enqueue(key.cluster)
	}
}

// awaitBegin waits for the function that a pass begins. It returns nil if ctx ends first, or if the pass gives the slot back. If no pass
// begins a function in time, it withdraws the call, and expired is true: an earlier pass may have reported that the call runs, which only
// another pass corrects.
func (c *memberCalls) awaitBegin(ctx context.Context, key callKey, call *memberCall) (do func(context.Context) *failure, expired bool) {
	defer call.prepareTimer.Stop()
	select {
	case do = <-call.start:
	case <-ctx.Done():
	case <-call.prepareTimer.C():
		c.mu.Lock()
		if expired = call.state == offered || call.state == preparing; expired {
			c.withdraw(key, call)
		} else {
			do = <-call.start // a pass has begun the call at the last moment, or withdrawn it: then it is nil
		}
		c.mu.Unlock()
	}
	if ctx.Err() != nil {
		return nil, expired
	}
	return do, expired
}

// runInSlot runs do. It turns a panic into a failure: a defect in the handling of one member must not end the process, which may embed the hub.
func (c *memberCalls) runInSlot(ctx context.Context, key callKey, do func(context.Context) *failure) (f *failure) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			guard.Report(guard.Call, logrus.WithField(registration.LogCluster, key.cluster.String()), "A call to a member panicked", cause)
			f = transientf(fleet.ReasonError, "internal error in the hub (details in its log)")
		}
	}()
	return do(ctx)
}

// drop ends a call and forgets it. A call that still waits for a slot or for the lock of its member does not start.
func (c *memberCalls) drop(key callKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.byKey[key]
	if call == nil {
		return
	}
	call.cancel()
	if call.state == ended {
		delete(c.byKey, key)
	}
}

func (c *memberCalls) wait() { c.goroutines.Wait() }
