package bundle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// badness orders the states; of several the worst is shown.
var badness = map[fleet.BundleState]int{
	fleet.Ready: 0, fleet.NotReady: 1, fleet.Pending: 2, fleet.OutOfSync: 3, fleet.Modified: 4, fleet.WaitApplied: 5, fleet.ErrApplied: 6,
}

// worstFirst are the states that are not ready.
var worstFirst = []fleet.BundleState{
	fleet.ErrApplied, fleet.WaitApplied, fleet.Modified, fleet.OutOfSync, fleet.Pending, fleet.NotReady,
}

// listMax is how many of those that are not ready are named.
const listMax = 10

// numberOf is where a summary counts those in a state.
func numberOf(s *fleet.BundleSummary, state fleet.BundleState) *int {
	switch state {
	case fleet.Ready:
		return &s.Ready
	case fleet.NotReady:
		return &s.NotReady
	case fleet.WaitApplied:
		return &s.WaitApplied
	case fleet.ErrApplied:
		return &s.ErrApplied
	case fleet.OutOfSync:
		return &s.OutOfSync
	case fleet.Modified:
		return &s.Modified
	default:
		return &s.Pending
	}
}

// tick counts n more BundleDeployments in a state, or fewer.
func tick(s *fleet.BundleSummary, state fleet.BundleState, n int) {
	*numberOf(s, state) += n
	s.DesiredReady += n
}

// worst is the worst state of a summary, empty when all is ready.
func worst(s fleet.BundleSummary) fleet.BundleState {
	for _, state := range worstFirst {
		if *numberOf(&s, state) > 0 {
			return state
		}
	}
	return ""
}

// worstOf are the first few, worst first and then by name, so that the same ones give the same list.
func worstOf(all []fleet.NonReadyResource) []fleet.NonReadyResource {
	slices.SortFunc(all, func(a, b fleet.NonReadyResource) int {
		return cmp.Or(cmp.Compare(badness[b.State], badness[a.State]), strings.Compare(a.Name, b.Name))
	})
	if len(all) == 0 {
		return nil
	}
	return slices.Clone(all[:min(len(all), listMax)])
}

// describe lists what is not ready: "ErrApplied(1) [Cluster ws/a: no such chart]; WaitApplied(2) [Cluster ws/b; Cluster ws/c]".
func describe(kind string, s fleet.BundleSummary) string {
	var parts []string
	for _, state := range worstFirst {
		n := *numberOf(&s, state)
		if n == 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s(%d) [%s]", state, n, strings.Join(named(kind, s.NonReadyResources, state), "; ")))
	}
	return strings.Join(parts, "; ")
}

func named(kind string, resources []fleet.NonReadyResource, state fleet.BundleState) (names []string) {
	for _, r := range resources {
		if r.State != state {
			continue
		}
		name := kind + " " + r.Name
		if r.Message != "" {
			name += ": " + r.Message
		}
		names = append(names, name)
	}
	return names
}

// ready is the outcome of a summary. It is False whenever something is not ready: management servers show a Ready that is
// Unknown as broken, and one that is False as under way.
func ready(kind string, s fleet.BundleSummary) result.Result {
	switch worst(s) {
	case "":
		return result.Done(fleet.ReasonAllReady, "")
	case fleet.ErrApplied:
		return result.Stalled(fleet.ReasonDeployFailed, describe(kind, s))
	default:
		return result.Stalled(fleet.ReasonNotReady, describe(kind, s))
	}
}

// discreet keeps quiet about what is only the way of every deployment: an event for each cluster at each change would tell
// nobody anything.
func discreet(before genericcondition.GenericCondition, o result.Result) result.Result {
	if usual(before.Reason) && usual(o.Reason) {
		return o.Quietly()
	}
	return o
}

func usual(reason string) bool {
	return slices.Contains([]string{"", fleet.ReasonAllReady, fleet.ReasonNoClusters, fleet.ReasonNotReady}, reason)
}

func fraction(s fleet.BundleSummary) string { return fmt.Sprintf("%d/%d", s.Ready, s.DesiredReady) }
