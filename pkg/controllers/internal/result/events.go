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
	Tell          bool // it is a wait that a person should hear of
	Quiet         bool // nobody needs to hear of it
}

// Record emits the event of a transition, if it deserves one: a warning when something is wrong or may have been
// forgotten, and a normal one when it was wrong and is right again. What simply succeeds or waits is on the object and needs no event.
func (t *Transition) Record(recorder record.EventRecorder, object runtime.Object) {
	switch {
	case t == nil || t.Quiet:
	case t.After == corev1.ConditionFalse, t.Tell:
		recorder.Event(object, corev1.EventTypeWarning, t.Reason, t.Message)
	case t.Before == corev1.ConditionFalse && t.After == corev1.ConditionTrue:
		recorder.Event(object, corev1.EventTypeNormal, t.Reason, t.Type+" again")
	}
}
