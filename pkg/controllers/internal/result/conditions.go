package result

import (
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

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
