// Package outcome is the vocabulary of a controller's pass: what it came to, and how that becomes a condition, an event
// and a requeue. It is the one place that maps the four.
package result

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Recheck is when something that stalled on an object the hub does not watch, such as one of somebody else that has a
// name it needs, is looked at again.
const Recheck = time.Minute

type kind int

const (
	kindDone kind = iota
	kindWait
	kindStalled
	kindRetry
	kindSkip
)

// Result is what one pass over one object came to. Make it with Done, Wait, Stalled, Retry or Skip.
type Result struct {
	kind kind
	// Reason is a constant of the API package.
	Reason string
	// Message is for people. It is stable: a pass that comes to the same writes nothing.
	Message string
	// After, when positive, brings the object back even if no event does.
	After time.Duration
	// Tell makes a transition to a wait a warning event: what is awaited may have been forgotten by a person.
	Tell bool
	// Quiet keeps a transition from being an event.
	Quiet bool
	// Err is what a retry is for; the work queue backs off while it lasts.
	Err error
}

// Done says that all is as it should be: condition True.
func Done(reason, message string) Result {
	return Result{kind: kindDone, Reason: reason, Message: message}
}

// Wait says that something else must happen first, whose event brings the object back: condition Unknown.
func Wait(reason, message string) Result {
	return Result{kind: kindWait, Reason: reason, Message: message}
}

// Stalled says that it will not work until a person or another object changes something: condition False and a warning
// event. Nothing is retried.
func Stalled(reason, message string) Result {
	return Result{kind: kindStalled, Reason: reason, Message: message}
}

// Retry says that an error of the moment got in the way: condition False, and the work queue tries again with backoff. A
// conflict is no more than a sign that somebody else was faster: it is tried again, and nobody is told.
func Retry(reason string, err error) Result {
	if apierrors.IsConflict(err) {
		return Result{kind: kindSkip, Err: err}
	}
	return Result{kind: kindRetry, Reason: reason, Message: err.Error(), Err: err}
}

// Skip says that there is nothing to do or to say: the condition stays as it is, and later steps are left out.
func Skip() Result { return Result{kind: kindSkip} }

// Told makes a transition to this wait an event.
func (o Result) Told() Result {
	o.Tell = true
	return o
}

// Quietly keeps a transition to this outcome from being an event: it is only the way of things.
func (o Result) Quietly() Result {
	o.Quiet = true
	return o
}

// In brings the object back after d at the latest.
func (o Result) In(d time.Duration) Result {
	o.After = d
	return o
}

// IsDone says whether a next step may build on this one.
func (o Result) IsDone() bool { return o.kind == kindDone }

// IsStalled says whether only a change from outside helps.
func (o Result) IsStalled() bool { return o.kind == kindStalled }

// IsWait says whether an event of something else is awaited.
func (o Result) IsWait() bool { return o.kind == kindWait }

// IsSkip says whether the condition is left alone.
func (o Result) IsSkip() bool { return o.kind == kindSkip }

// Status is the status of a condition whose True is the good state.
func (o Result) Status() corev1.ConditionStatus {
	switch o.kind {
	case kindDone:
		return corev1.ConditionTrue
	case kindWait:
		return corev1.ConditionUnknown
	default:
		return corev1.ConditionFalse
	}
}

// Earliest is the sooner of two requeue delays. As with After, one that is not positive is none: it must not keep the other
// from being asked for.
func Earliest(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}
