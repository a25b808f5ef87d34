package bundle

import (
	"cmp"
	"fmt"
	"strings"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// messageMax bounds what one BundleDeployment adds to a message that lists many.
const messageMax = 400

// messageOf says why a BundleDeployment is not ready.
func messageOf(d *fleet.BundleDeployment, state fleet.BundleState) string {
	of := func(conditionType string) string { return result.Get(d.Status.Conditions, conditionType).Message }
	message := ""
	switch state {
	case fleet.ErrApplied:
		message = cmp.Or(of(fleet.ConditionDeployed), of(fleet.ConditionInstalled))
	case fleet.NotReady:
		message = cmp.Or(of(fleet.ConditionReady), notReady(d.Status.NonReadyStatus))
	case fleet.Modified:
		message = cmp.Or(modified(d.Status.ModifiedStatus), of(fleet.ConditionReady))
	case fleet.OutOfSync:
		if d.Spec.Paused {
			message = "paused"
		}
	default: // there is nothing to say that the state does not
	}
	if len(message) > messageMax {
		message = strings.ToValidUTF8(message[:messageMax], "") + "..."
	}
	return message
}

func notReady(resources []fleet.NonReadyStatus) string {
	if len(resources) == 0 {
		return ""
	}
	r := resources[0]
	return strings.TrimSpace(fmt.Sprintf("%s %s/%s %s %s", r.Kind, r.Namespace, r.Name, r.Summary.State, strings.Join(r.Summary.Message, ", ")))
}

func modified(resources []fleet.ModifiedStatus) string {
	if len(resources) == 0 {
		return ""
	}
	r := resources[0]
	what := "modified"
	switch {
	case r.Create:
		what = "missing"
	case r.Delete:
		what = "extra"
	case r.Exist:
		what = "of somebody else"
	}
	return fmt.Sprintf("%s %s/%s %s", r.Kind, r.Namespace, r.Name, what)
}
