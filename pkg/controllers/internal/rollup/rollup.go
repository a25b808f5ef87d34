// Package rollup has the sums over BundleDeployments in the status of Bundles, Clusters and ClusterGroups: their numbers by state, and what is not ready.
package rollup

import (
	"fmt"
	"slices"
	"strings"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// unreadyStates are the states that are not ready, the worst first.
var unreadyStates = []fleet.BundleState{
	fleet.ErrApplied, fleet.WaitApplied, fleet.Modified, fleet.OutOfSync, fleet.Pending, fleet.NotReady,
}

// MaxListed is the maximum number of BundleDeployments or Clusters that are not ready in the list of a status.
const MaxListed = 10

// Worst returns the worst state in a summary, "" if all is ready.
func Worst(s fleet.BundleSummary) fleet.BundleState {
	for _, state := range unreadyStates {
		if number(s, state) > 0 {
			return state
		}
	}
	return ""
}

// Fraction returns the text "ready/desired".
func Fraction(s fleet.BundleSummary) string { return fmt.Sprintf("%d/%d", s.Ready, s.DesiredReady) }

// Count adds n BundleDeployments in a state to a summary.
func Count(s *fleet.BundleSummary, state fleet.BundleState, n int) {
	*counter(s, state) += n
	s.DesiredReady += n
}

// number returns the number of BundleDeployments in a state.
func number(s fleet.BundleSummary, state fleet.BundleState) int { return *counter(&s, state) }

func counter(s *fleet.BundleSummary, state fleet.BundleState) *int {
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

// AddSummary adds the numbers of one summary to another, and appends its list up to MaxListed entries.
func AddSummary(into *fleet.BundleSummary, s fleet.BundleSummary) {
	for _, state := range append(slices.Clone(unreadyStates), fleet.Ready) {
		*counter(into, state) += number(s, state)
	}
	into.DesiredReady += s.DesiredReady
	room := MaxListed - len(into.NonReadyResources)
	into.NonReadyResources = append(into.NonReadyResources, s.NonReadyResources[:min(len(s.NonReadyResources), room)]...)
}

// AddResources adds the numbers of resources of a BundleDeployment or Cluster.
func AddResources(into *fleet.ResourceCounts, n fleet.ResourceCounts) {
	into.Ready += n.Ready
	into.DesiredReady += n.DesiredReady
	into.WaitApplied += n.WaitApplied
	into.Modified += n.Modified
	into.Orphaned += n.Orphaned
	into.Missing += n.Missing
	into.Unknown += n.Unknown
	into.NotReady += n.NotReady
}

// FleetMessage returns the message of condition Ready in the form of Fleet's own controllers, "" if all is ready: a text about the first entry
// of the list in each state, in sorted order.
func FleetMessage(kind string, s fleet.BundleSummary) string {
	var texts []string
	described := map[fleet.BundleState]bool{fleet.Ready: true}
	for _, r := range s.NonReadyResources {
		if described[r.State] {
			continue
		}
		described[r.State] = true
		name := kind + " " + r.Name
		if r.Message != "" {
			name += ": " + r.Message
		}
		texts = append(texts, fmt.Sprintf("%s(%d) [%s]", r.State, number(s, r.State), name))
		for _, m := range r.ModifiedStatus {
			texts = append(texts, resource(m.Kind, m.APIVersion, m.Namespace, m.Name)+" "+fleetstatus.DifferenceText(m))
		}
		for _, n := range r.NonReadyStatus {
			texts = append(texts, resource(n.Kind, n.APIVersion, n.Namespace, n.Name)+" "+fleetstatus.SummaryText(n.Summary))
		}
	}
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), "; ")
}

// resource names an object: "deployment.apps ns/name", "configmap.v1 ns/name".
func resource(kind, apiVersion, namespace, name string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	return fmt.Sprintf("%s.%s %s/%s", strings.ToLower(kind), group, namespace, name)
}
