package registration

import (
	"cmp"
	"slices"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

const (
	// RefusedLifetime is the time for which a refused request is kept, so that a person can inspect or approve it. An agent that
	// still wants to register sends a new one.
	RefusedLifetime = 24 * time.Hour
	// MostRefused is the maximum number of refused requests kept for each creator, because the thief of a token can create any number.
	MostRefused = 500
)

// RefusalOf returns the condition that says why a request is refused, and whether it is. A request whose decision failed with an error is
// not refused: the decision is repeated.
func RefusalOf(request *fleet.ClusterRegistration) (genericcondition.GenericCondition, bool) {
	granted := fleetstatus.Condition(request.Status.Conditions, fleet.ConditionGranted)
	if request.Status.Granted || granted.Status != corev1.ConditionFalse || granted.Reason == fleet.ReasonError {
		return genericcondition.GenericCondition{}, false
	}
	return granted, true
}

// Refused is a request that was refused.
type Refused struct {
	Name    string
	Created time.Time
	// Decided is true if a person decided about the request. Such requests are kept: otherwise the same decision would be needed again.
	Decided bool
}

// DeletableRefused returns the refused requests of one creator that the hub deletes: those older than RefusedLifetime, and the oldest
// ones above MostRefused.
func DeletableRefused(refused []Refused, now time.Time) (names []string) {
	refused = slices.DeleteFunc(slices.Clone(refused), func(r Refused) bool { return r.Decided })
	slices.SortFunc(refused, func(a, b Refused) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Name, a.Name))
	})
	for i, r := range refused {
		if i >= MostRefused || now.Sub(r.Created) >= RefusedLifetime {
			names = append(names, r.Name)
		}
	}
	return names
}
