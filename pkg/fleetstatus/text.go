package fleetstatus

import (
	"github.com/rancher/wrangler/v3/pkg/summary"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// SummaryText describes the state of an object in the words of Fleet.
func SummaryText(s fleet.ResourceSummary) string {
	return summary.Summary{State: s.State, Error: s.Error, Transitioning: s.Transitioning, Message: s.Message}.String()
}

// DifferenceText describes how an object differs from what was deployed, in the words of Fleet.
func DifferenceText(m fleet.ModifiedStatus) string {
	switch {
	case m.Exist:
		return "is not owned by us"
	case m.Create:
		return "missing"
	case m.Delete:
		return "extra"
	}
	return "modified " + m.Patch
}
