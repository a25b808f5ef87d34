package result

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// Transition is a change of a condition's status or reason.
type Transition struct {
	Type          string
	Before, After corev1.ConditionStatus
	Reason        string
	Message       string
	Tell          bool // of Result
	Quiet         bool // of Result
}

// Record records the event of a transition: a warning for a failure and for a wait for a person, a normal event for the recovery from
// a failure. Other successes and waits are only in the condition.
func (t *Transition) Record(recorder record.EventRecorder, object runtime.Object) {
	switch {
	case t == nil || t.Quiet:
	case t.After == corev1.ConditionFalse, t.Tell:
		recorder.Event(object, corev1.EventTypeWarning, t.Reason, t.Message)
	case t.Before == corev1.ConditionFalse && t.After == corev1.ConditionTrue:
		recorder.Event(object, corev1.EventTypeNormal, t.Reason, t.Type+" again")
	}
}
