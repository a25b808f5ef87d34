package rollup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// ReportDeployments sums up the BundleDeployments of a Cluster in its status.
func ReportDeployments(status *fleet.ClusterStatus, deployments []*fleet.BundleDeployment) {
	var summary fleet.BundleSummary
	var resources fleet.ResourceCounts
	var unready []fleet.NonReadyResource
	for _, deployment := range deployments {
		state := fleetstatus.BundleState(deployment.Spec, deployment.Status)
		Count(&summary, state, 1)
		if state != fleet.Ready {
			unready = append(unready, withoutPatches(NonReady(deployment.Name, deployment, state)))
		}
		AddResources(&resources, deployment.Status.ResourceCounts)
	}
	summary.NonReadyResources = WorstFirst(unready, nil)
	status.Summary = summary
	status.ResourceCounts = resources
	status.Display.ReadyBundles = Fraction(summary)
	status.Display.State = string(Worst(summary))
	status.ReadyGitRepos, status.DesiredReadyGitRepos = countApps(deployments, fleet.RepoLabel)
	status.ReadyHelmOps, status.DesiredReadyHelmOps = countApps(deployments, fleet.HelmOpLabel)
}

// countApps counts the GitRepos or HelmOps, by the label with their name, that have a BundleDeployment. As with Fleet's own
// controllers, one that is ready makes the GitRepo or HelmOp ready.
func countApps(deployments []*fleet.BundleDeployment, label string) (ready, desired int) {
	apps := map[string]bool{}
	for _, deployment := range deployments {
		if name := deployment.Labels[label]; name != "" {
			apps[name] = apps[name] || fleetstatus.BundleState(deployment.Spec, deployment.Status) == fleet.Ready
		}
	}
	for _, isReady := range apps {
		if isReady {
			ready++
		}
	}
	return ready, len(apps)
}

// Ready returns condition Ready for a summary over objects of a kind. It is False whenever something is not ready: management
// servers show Unknown as broken and False as in progress.
func Ready(kind string, s fleet.BundleSummary) result.Result {
	switch Worst(s) {
	case "":
		return result.Done(fleet.ReasonAllReady, "")
	case fleet.ErrApplied:
		return result.Stalled(fleet.ReasonDeployFailed, describe(kind, s))
	default:
		return result.Stalled(fleet.ReasonNotReady, describe(kind, s))
	}
}

// WithUnready adds what is not ready to the message of an error about other objects of the kind, which would hide it.
func WithUnready(message, kind string, s fleet.BundleSummary) string {
	if unready := describe(kind, s); unready != "" {
		return message + "; " + unready
	}
	return message
}

// WithoutRoutineEvent suppresses the event of a transition that is part of every deployment.
func WithoutRoutineEvent(before genericcondition.GenericCondition, out result.Result) result.Result {
	routine := []string{"", fleet.ReasonAllReady, fleet.ReasonNoClusters, fleet.ReasonNotReady}
	if slices.Contains(routine, before.Reason) && slices.Contains(routine, out.Reason) {
		return out.WithoutEvent()
	}
	return out
}

// describe lists what is not ready: "ErrApplied(1) [Cluster ws/a: no such chart]; WaitApplied(2) [Cluster ws/b; Cluster ws/c]".
func describe(kind string, s fleet.BundleSummary) string {
	var parts []string
	for _, state := range unreadyStates {
		n := number(s, state)
		if n == 0 {
			continue
		}
		var names []string
		for _, r := range s.NonReadyResources {
			if r.State != state {
				continue
			}
			name := kind + " " + r.Name
			if r.Message != "" {
				name += ": " + r.Message
			}
			names = append(names, name)
		}
		parts = append(parts, fmt.Sprintf("%s(%d) [%s]", state, n, strings.Join(names, "; ")))
	}
	return strings.Join(parts, "; ")
}

// WorstFirst sorts the resources by state and name, so that equal resources give an equal list, and returns at most MaxListed of them.
// Those that only wait for others come last in their state. If not all fit, the list has the first of each state, then those that do not wait,
// so that it names what stops a rollout.
func WorstFirst(all []fleet.NonReadyResource, waits map[string]bool) []fleet.NonReadyResource {
	if len(all) == 0 {
		return nil
	}
	toInt := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	inOrder := func(a, b fleet.NonReadyResource) int {
		return cmp.Or(slices.Index(unreadyStates, a.State)-slices.Index(unreadyStates, b.State),
			toInt(waits[a.Name])-toInt(waits[b.Name]), strings.Compare(a.Name, b.Name))
	}
	slices.SortFunc(all, inOrder)
	if len(all) > MaxListed {
		first := map[fleet.BundleState]string{}
		for _, r := range slices.Backward(all) {
			first[r.State] = r.Name
		}
		slices.SortStableFunc(all, func(a, b fleet.NonReadyResource) int {
			return cmp.Or(toInt(first[a.State] != a.Name)-toInt(first[b.State] != b.Name), toInt(waits[a.Name])-toInt(waits[b.Name]))
		})
		all = all[:MaxListed]
		slices.SortFunc(all, inOrder)
	}
	return slices.Clone(all)
}

// maxMessage is how many bytes one BundleDeployment adds to a message that lists many.
const maxMessage = 400

// NonReady returns the entry of a BundleDeployment in the status of its Cluster or Bundle.
func NonReady(name string, deployment *fleet.BundleDeployment, state fleet.BundleState) fleet.NonReadyResource {
	return fleet.NonReadyResource{
		Name: name, State: state, Message: message(deployment, state),
		// They are not shortened in the cache of an embedding server, nor in the response to a write.
		ModifiedStatus: fleetstatus.ShortenModified(deployment.Status.ModifiedStatus),
		NonReadyStatus: fleetstatus.ShortenNonReady(deployment.Status.NonReadyStatus),
	}
}

// withoutPatches removes the differences from the entry of a Cluster: they contain values of Bundles, and more people may read Clusters than Bundles. The
// names of the objects stay.
func withoutPatches(r fleet.NonReadyResource) fleet.NonReadyResource {
	for i := range r.ModifiedStatus { // a copy
		r.ModifiedStatus[i].Patch = ""
	}
	return r
}

// message returns why a BundleDeployment is not ready, or "" if its state is enough.
func message(deployment *fleet.BundleDeployment, state fleet.BundleState) string {
	of := func(conditionType string) string {
		return fleetstatus.Condition(deployment.Status.Conditions, conditionType).Message
	}
	text := ""
	switch state {
	case fleet.ErrApplied:
		text = cmp.Or(of(fleet.ConditionDeployed), of(fleet.ConditionInstalled))
	case fleet.NotReady:
		text = of(fleet.ConditionReady)
		if all := deployment.Status.NonReadyStatus; text == "" && len(all) > 0 {
			r := all[0]
			text = strings.TrimSpace(fmt.Sprintf("%s %s/%s %s %s", r.Kind, r.Namespace, r.Name, r.Summary.State, strings.Join(r.Summary.Message, ", ")))
		}
	case fleet.Modified:
		text = of(fleet.ConditionReady)
		if all := deployment.Status.ModifiedStatus; len(all) > 0 {
			difference := "modified"
			switch r := all[0]; {
			case r.Exist:
				difference = "exists and is not part of the release"
			case r.Create:
				difference = "missing"
			case r.Delete:
				difference = "extra"
			}
			text = fmt.Sprintf("%s %s/%s %s", all[0].Kind, all[0].Namespace, all[0].Name, difference)
		}
	case fleet.WaitApplied:
		if deployment.Spec.OffSchedule { // a controller of Fleet has set it, which does not run beside this one
			text = "the agent deploys nothing while spec.offSchedule of the BundleDeployment is true, and this hub has no schedules; set it to false"
		}
	case fleet.OutOfSync:
		if deployment.Spec.Paused {
			text = "paused"
		}
	default: // the state is enough
	}
	return Shown(text)
}

// Shown is a text as the status of a Cluster or a Bundle shows it: without names of Contents and differences of objects, because more people may
// read Clusters than Contents and Bundles, and shortened.
func Shown(text string) string {
	return fleetstatus.Cut(content.WithoutNames(fleetstatus.WithoutPatches(text)), maxMessage)
}
