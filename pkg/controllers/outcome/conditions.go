package outcome

import (
	"slices"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
)

// Conditions is the list of conditions every status has.
type Conditions = []genericcondition.GenericCondition

// Get returns the condition of that type; absent, it has the empty status.
func Get(conditions Conditions, conditionType string) genericcondition.GenericCondition {
	for _, c := range conditions {
		if c.Type == conditionType {
			return c
		}
	}
	return genericcondition.GenericCondition{Type: conditionType}
}

// Set puts the outcome into the condition and returns the transition, nil where status and reason stayed the same. A
// condition that already says all this keeps its timestamps, so that nothing is written when nothing changed.
func Set(conditions *Conditions, conditionType string, o Outcome, now time.Time) *Transition {
	if o.IsSkip() {
		return nil
	}
	before := Get(*conditions, conditionType)
	after := before
	after.Status, after.Reason, after.Message = o.Status(), o.Reason, o.Message
	if after == before {
		return nil
	}
	stamp := now.UTC().Format(time.RFC3339)
	after.LastUpdateTime = stamp
	if before.Status != after.Status {
		after.LastTransitionTime = stamp
	}
	replace(conditions, after)
	if before.Status == after.Status && before.Reason == after.Reason {
		return nil
	}
	return &Transition{
		Type: conditionType, Before: before.Status, After: after.Status, Reason: after.Reason, Message: after.Message, Tell: o.Tell, Quiet: o.Quiet,
	}
}

// replace writes into a copy: the slice may still be that of a cached object.
func replace(conditions *Conditions, c genericcondition.GenericCondition) {
	list := slices.Clone(*conditions)
	at := slices.IndexFunc(list, func(other genericcondition.GenericCondition) bool { return other.Type == c.Type })
	if at < 0 {
		list = append(list, c)
	} else {
		list[at] = c
	}
	*conditions = list
}
