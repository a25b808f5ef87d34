// Package result has the results of a controller's pass over an object, and turns them into conditions, events and requeues.
package result

import (
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Recheck is the interval at which a stalled pass is repeated if it stalled because of an object that the hub does not watch, for example a
// foreign object with a name that the hub needs.
const Recheck = time.Minute

// MissedEvent is the time after which a pass runs again even without the event that should enqueue the object.
const MissedEvent = 10 * time.Second

type outcome int

const (
	outcomeDone outcome = iota
	outcomeWait
	outcomeStalled
	outcomeRetry
	outcomeSkip
)

// Result is the result of a pass over an object, or of one step of it. It is created by Done, Wait, Stalled, Retry or Skip.
type Result struct {
	outcome outcome
	// Reason is a constant of the API package.
	Reason string
	// Message is for people. Passes with the same result have the same message, so that they write nothing.
	Message string
	// After, if positive, is the time after which the object is enqueued even without an event.
	After time.Duration
	// EventOnWait records a warning event for a transition to a wait: a person must act.
	EventOnWait bool
	// IsWrittenAtOnce writes a wait to the status at once, although a controller may otherwise report only waits that last.
	IsWrittenAtOnce bool
	// StatusLater leaves the status as it is for now, see WithStatusLater.
	StatusLater bool
	// NoEvent suppresses the event of a transition.
	NoEvent bool
	// Err is the cause of a retry; the work queue backs off.
	Err error
}

// Done means success: condition True.
func Done(reason, message string) Result {
	return Result{outcome: outcomeDone, Reason: reason, Message: message}
}

// Wait means that something else must happen first, whose event enqueues the object: condition Unknown.
func Wait(reason, message string) Result {
	return Result{outcome: outcomeWait, Reason: reason, Message: message}
}

// Stalled means that the object is not as it should be, mostly until a person or another controller acts: condition False and a warning event.
// The work queue does not retry the pass; with In(d) it runs again after d.
func Stalled(reason, message string) Result {
	return Result{outcome: outcomeStalled, Reason: reason, Message: message}
}

// Retry means a temporary error: condition False, and the work queue retries with backoff. A conflict is retried too, but leaves the
// condition as it is.
func Retry(reason string, err error) Result {
	if apierrors.IsConflict(err) {
		return Result{outcome: outcomeSkip, Err: err}
	}
	return Result{outcome: outcomeRetry, Reason: reason, Message: err.Error(), Err: err}
}

// Skip means that no further step follows, and that the condition stays as it is.
func Skip() Result { return Result{outcome: outcomeSkip} }

// WithEvent records an event for a transition to this wait.
func (o Result) WithEvent() Result {
	o.EventOnWait = true
	return o
}

// WrittenAtOnce writes this wait to the status at once, although a controller may otherwise report only waits that last.
func (o Result) WrittenAtOnce() Result {
	o.IsWrittenAtOnce = true
	return o
}

// WithStatusLater delays the status after a pass that has created an object whose event enqueues this object within moments: the status is
// written once, by the pass after that event, or when After has passed.
func (o Result) WithStatusLater() Result {
	o.StatusLater = true
	return o
}

// WithoutEvent suppresses the event of a transition to this result.
func (o Result) WithoutEvent() Result {
	o.NoEvent = true
	return o
}

// In enqueues the object after d at the latest.
func (o Result) In(d time.Duration) Result {
	o.After = d
	return o
}

// IsDone reports success: the next step may follow.
func (o Result) IsDone() bool { return o.outcome == outcomeDone }

// IsStalled reports a result of Stalled.
func (o Result) IsStalled() bool { return o.outcome == outcomeStalled }

// IsWait reports a result of Wait.
func (o Result) IsWait() bool { return o.outcome == outcomeWait }

// IsSkip reports whether the condition stays as it is.
func (o Result) IsSkip() bool { return o.outcome == outcomeSkip }

// Status is the status of the condition.
func (o Result) Status() corev1.ConditionStatus {
	switch o.outcome {
	case outcomeDone:
		return corev1.ConditionTrue
	case outcomeWait:
		return corev1.ConditionUnknown
	default:
		return corev1.ConditionFalse
	}
}

// Earliest is the shorter of two requeue delays. A delay that is not positive means none.
func Earliest(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// maxMessage limits the message of a condition in bytes: errors quote what users wrote, which may be as large as the API server permits, and one
// object of a user may be the cause of a condition of thousands of others.
const maxMessage = 16 << 10

// Set puts the result into the condition and returns the transition, nil if status and reason stayed the same. An unchanged
// condition keeps its timestamps, so that nothing is written.
func Set(conditions *fleetstatus.Conditions, conditionType string, o Result, now time.Time) *Transition {
	if o.IsSkip() {
		return nil
	}
	o.Message = fleetstatus.Cut(o.Message, maxMessage)
	before := fleetstatus.Condition(*conditions, conditionType)
	after := genericcondition.GenericCondition{Type: conditionType, Status: o.Status(), Reason: o.Reason, Message: o.Message}
	fleetstatus.SetCondition(conditions, after, now)
	if before.Status == after.Status && before.Reason == after.Reason {
		return nil
	}
	return &Transition{
		Type: conditionType, Before: before.Status, After: after.Status, Reason: after.Reason, Message: after.Message, EventOnWait: o.EventOnWait, NoEvent: o.NoEvent,
	}
}

// Transition is a change of a condition's status or reason.
type Transition struct {
	Type          string
	Before, After corev1.ConditionStatus
	Reason        string
	Message       string
	EventOnWait   bool // copied from the Result
	NoEvent       bool // copied from the Result
}

// Record records the event of a transition: a warning for a failure and for a wait for a person, a normal event for the recovery from
// a failure. Other successes and waits are only in the condition.
func (t *Transition) Record(recorder record.EventRecorder, object runtime.Object) {
	switch {
	case t == nil || t.NoEvent:
	case t.After == corev1.ConditionFalse, t.EventOnWait:
		recorder.Event(object, corev1.EventTypeWarning, t.Reason, t.Message)
	case t.Before == corev1.ConditionFalse && t.After == corev1.ConditionTrue:
		recorder.Event(object, corev1.EventTypeNormal, t.Reason, t.Type+" again")
	}
}
