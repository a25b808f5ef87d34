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

var purposes = []purpose{installing, removing, checkingOwner}

// memberCall is the last call with one key. A call is a function that sends requests to a member; it returns when its context ends.
type memberCall struct {
	inputs   string // a digest of everything that determines the call; other inputs are another call
	state    callState
	wanted   bool     // since the current pass, or the last one, began, it has reserved the call, or the call was offered a slot
	slots    *slots   // in which it waits or has a slot
	failure  *failure // while a failed call is retried, the failure of the previous try
	replaced *string  // what foundAgentOf has recorded
	retryAt  time.Time
	backoff  wait.Backoff
	cancel   context.CancelFunc // of a call that runs
}

// callState is the state of a call. Until a pass prepares the call, only its key and the digest of its inputs are kept: a workspace may have
// thousands of such calls.
type callState int

const (
	absent    callState = iota
	withdrawn           // it has sent nothing, and joins the queue again when a pass reserves it
	waiting             // in the queue for a slot
	offered             // it has a slot, and the Cluster is enqueued: the next pass prepares the call
	preparing           // a pass prepares the call in its slot
	running             // it sends requests
	ended               // failure is nil if it succeeded
)

// isPending reports whether the call waits, has a slot or runs.
func (s callState) isPending() bool { return s >= waiting && s <= running }

// isUnprepared reports whether a pass that asks for a call with these inputs must be able to prepare it.
func (c memberCall) isUnprepared(inputs string) bool {
	return c.inputs != inputs || c.state <= withdrawn || c.state == offered
}

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

// memberCalls runs calls to members beside the workers of the controller. A pass over a Cluster reserves a slot for a call with some inputs. If
// the returned state is preparing, it prepares the call and begins it. Otherwise the call waits in a queue, and the Cluster is enqueued when the
// call gets a slot, and when it has ended.
//
// A slot that becomes free is given to the next waiting call, and the Cluster of that call is enqueued, so no other call can take the slot before the
// pass that follows. If that pass ends without having begun the call, for whatever reason, the slot goes to the next waiting call, and this call joins
// the queue again when a pass asks for it. A call that gets its slot while a pass over its Cluster runs keeps the slot at the end of that pass, because
// the work queue then runs the enqueued Cluster once more.
type memberCalls struct {
	ctx     context.Context
	clock   clock.Clock
	backoff app.Backoff
	enqueue func(cluster types.NamespacedName) // is called with mu locked

	large      workspaceSemaphores // for large responses, of which a workspace may have largeResponses in memory
	goroutines sync.WaitGroup      // one for each call that runs
	members    memberLocks

	mu                       sync.Mutex
	first, retries, removals *slots
	byKey                    map[callKey]*memberCall
}

func newMemberCalls(ctx context.Context, clk clock.Clock, backoff app.Backoff, enqueue func(types.NamespacedName)) *memberCalls {
	return &memberCalls{
		ctx: ctx, clock: clk, backoff: backoff,
		enqueue: func(cluster types.NamespacedName) {
			if ctx.Err() == nil {
				enqueue(cluster)
			}
		},
		first:   newSlots(firstSlots, firstPerWorkspace),
		retries: newSlots(retrySlots, retriesPerWorkspace), removals: newSlots(removalSlots, removalsPerWorkspace),
		byKey: map[callKey]*memberCall{},
	}
}

// last returns the last call with this key; it is absent if there is none.
func (c *memberCalls) last(key callKey) memberCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.byKey[key]; call != nil {
		return *call
	}
	return memberCall{}
}

// beginPass begins a pass over a Cluster. A deferred call of end frees the slots of calls that the pass has not begun, even if it panics.
func (c *memberCalls) beginPass(cluster types.NamespacedName) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, purpose := range purposes {
		if call := c.byKey[callKey{cluster, purpose}]; call != nil {
			call.wanted = false
		}
	}
	return func() { c.withdrawUnbegun(cluster, false) }
}

// withdrawUnbegun withdraws the calls that the pass has not begun, although they have had a slot since it began. If the pass has decided which calls
// the Cluster needs, it also withdraws those that wait and that the pass did not ask for. The repetition of a pass that failed may ask for them.
func (c *memberCalls) withdrawUnbegun(cluster types.NamespacedName, hasDecided bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, purpose := range purposes {
		key := callKey{cluster, purpose}
		call := c.byKey[key]
		if call != nil && (call.state == preparing || !call.wanted && (call.state == offered || hasDecided)) {
			c.withdraw(key, call)
		}
	}
}

// withdraw takes a call that has sent nothing out of the queue, or frees its slot. The caller holds the lock.
func (c *memberCalls) withdraw(key callKey, call *memberCall) {
	switch call.state {
	case waiting:
		call.slots.leave(key)
	case offered, preparing:
		c.release(key, call)
	default:
		return
	}
	call.state = withdrawn
}

// release frees the slot of a call, gives the free slots to the next waiting calls, and enqueues their Clusters. The caller holds the lock.
func (c *memberCalls) release(key callKey, call *memberCall) {
	call.slots.release(key.cluster.Namespace)
	for key, ok := call.slots.next(); ok; key, ok = call.slots.next() {
		c.byKey[key].state, c.byKey[key].wanted = offered, true
		c.enqueue(key.cluster)
	}
}

// reserve returns the call with these inputs. If there is none, if it has failed and is due, or if it is offered a slot, the pass gets the slot or the
// call waits for one. A waiting or running call with other inputs is returned instead: it is not interrupted, and the Cluster is enqueued later.
func (c *memberCalls) reserve(key callKey, inputs string) memberCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.byKey[key]
	if call == nil {
		call = &memberCall{}
		c.byKey[key] = call
	}
	call.wanted = true
	isSame := call.inputs == inputs && call.state != absent
	if call.state.isPending() && call.state != offered || call.state == ended && isSame && !call.due(c.clock.Now()) {
		return *call
	}
	// A retry keeps reporting its failure until it has succeeded; otherwise each retry would write the status twice and emit an event.
	if !isSame {
		const doublings = 20
		call.inputs, call.failure = inputs, nil
		call.backoff = wait.Backoff{Duration: c.backoff.Base, Factor: 2, Jitter: 0.2, Steps: doublings, Cap: c.backoff.Max}
	}
	if call.state != offered {
		switch {
		case key.purpose != installing:
			call.slots = c.removals
		case call.failure != nil:
			call.slots = c.retries
		default:
			call.slots = c.first
		}
		if !call.slots.take(key.cluster.Namespace) {
			call.slots.join(key)
			call.state = waiting
			return *call
		}
	}
	call.state = preparing
	return *call
}

// begin runs do in the slot that the pass has reserved. It does nothing if the pass has none, or if the call was dropped meanwhile.
func (c *memberCalls) begin(key callKey, do func(context.Context) *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.byKey[key]
	if call == nil || call.state != preparing {
		return
	}
	ctx, cancel := context.WithCancel(c.ctx)
	call.state, call.cancel = running, cancel
	c.goroutines.Go(func() {
		problem := c.run(ctx, key, do)
		c.mu.Lock()
		defer c.mu.Unlock()
		if problem != nil {
			if ctx.Err() == nil && (call.failure == nil || *call.failure != *problem) { // not for each try
				logrus.WithField(registration.LogCluster, key.cluster.String()).Warnf("A call to the member failed (%s): %s: %s", key.purpose, problem.reason, problem.message)
			}
			call.retryAt = c.clock.Now().Add(call.backoff.Step())
		}
		call.state, call.failure = ended, problem
		if ctx.Err() != nil {
			delete(c.byKey, key)
		}
		cancel()
		c.release(key, call)
		c.enqueue(key.cluster)
	})
}

// foundAgentOf records the other Cluster to which the agent on the member belonged when an installation began, "" if it belonged to none. A try that
// failed may have replaced the agent already, so a later one does not forget that Cluster, even with other inputs.
func (c *memberCalls) foundAgentOf(cluster types.NamespacedName, owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.byKey[callKey{cluster, installing}]; call != nil && (owner != "" || call.replaced == nil) {
		call.replaced = &owner
	}
}

// run runs do. It turns a panic into a failure: a defect in the handling of one member must not end the process, which may embed the hub.
func (c *memberCalls) run(ctx context.Context, key callKey, do func(context.Context) *failure) (f *failure) {
	if ctx.Err() != nil {
		return nil
	}
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

// drop forgets a call. One that runs is cancelled, and forgotten when it has ended.
func (c *memberCalls) drop(key callKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch call := c.byKey[key]; {
	case call == nil:
	case call.state == running:
		call.cancel()
	default:
		c.withdraw(key, call)
		delete(c.byKey, key)
	}
}

func (c *memberCalls) wait() { c.goroutines.Wait() }
