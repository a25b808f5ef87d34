package result

import (
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"

	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Conditions is the list of conditions every status has.
type Conditions = fleetstatus.Conditions

// Get returns the condition of that type; absent, it has the empty status.
func Get(conditions Conditions, conditionType string) genericcondition.GenericCondition {
	return fleetstatus.Condition(conditions, conditionType)
}

// Set puts the result into the condition and returns the transition, nil if status and reason stayed the same. An unchanged
// condition keeps its timestamps, so that nothing is written.
func Set(conditions *Conditions, conditionType string, o Result, now time.Time) *Transition {
	if o.IsSkip() {
		return nil
	}
	before := Get(*conditions, conditionType)
	after := genericcondition.GenericCondition{Type: conditionType, Status: o.Status(), Reason: o.Reason, Message: o.Message}
	fleetstatus.SetCondition(conditions, after, now)
	if before.Status == after.Status && before.Reason == after.Reason {
		return nil
	}
	return &Transition{
		Type: conditionType, Before: before.Status, After: after.Status, Reason: after.Reason, Message: after.Message, Tell: o.Tell, Quiet: o.Quiet,
	}
}
