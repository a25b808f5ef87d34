package deploy

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// facts is what is known about a BundleDeployment and its release. decide chooses the action from them. It does not read MustRepeat.
type facts struct {
	// Own means that the BundleDeployment is the one of the agent itself.
	Own bool
	// Wanted means that the BundleDeployment exists and is not being deleted.
	Wanted bool
	// Elsewhere means that the BundleDeployment is the one of the agent itself and names another namespace: the agent there deploys it. While an
	// agent moves, the old and the new agent see the same BundleDeployment.
	Elsewhere bool
	// NoDeploymentID means that the hub has not set a deployment ID yet.
	NoDeploymentID bool
	// Paused means that nothing may change now.
	Paused bool
	// IsCurrent means that the release on the cluster has the deployment ID and is deployed, see requestedRevision.
	IsCurrent bool
	// MustRepeat means that this run has deployed or read the revision with the deployment ID, and has to deploy it again, because another
	// BundleDeployment has adopted the release since, because the revision is not signed, or because another revision is the last one. RetryNotDue
	// depends on it, and so does the pause after the deployment.
	MustRepeat bool
	// OldCopies means that Secrets or ConfigMaps that were copied for the release have changed on the hub.
	OldCopies bool
	// Leftovers means that failed attempts have left objects beside the release.
	Leftovers bool
	// OldNamespaceLabels means that the labels or annotations that the options set on the namespace of the release have changed, or that this run has not
	// compared them yet.
	OldNamespaceLabels bool
	// WaitsFor names the Bundles that must be ready first; "" if none is missing.
	WaitsFor string
	// WaitsForValues means that the hub has not written the Secret with the Helm values yet.
	WaitsForValues bool
	// Drifted means that the cluster differs from the release in what a correction can undo, MustCorrect that drift must be undone.
	Drifted, MustCorrect bool
	// RetryNotDue means that the pause after the last attempt has not passed.
	RetryNotDue bool
}

// action is the result of decide.
type action int

const (
	reportOnly   action = iota // report the state: nothing is to be done, or the time for another attempt has not come
	deploy                     // install or upgrade
	correct                    // roll the release back to its deployed revision, to undo drift
	sweep                      // remove the objects that failed attempts left
	relabel                    // apply the labels and annotations of the namespace
	await                      // report the state, until an event: it is paused, has no deployment ID yet, or waits for values or other Bundles
	checkRemoval               // the BundleDeployment is gone: decideRemoval decides what happens to its releases
	ignore                     // deploy nothing: another agent does
)

// decide chooses the action for one BundleDeployment. If its own BundleDeployment is gone, the agent does not uninstall itself: at most the history
// of its own release is removed.
func decide(f facts) action {
	switch {
	case !f.Wanted:
		return checkRemoval
	case f.Elsewhere:
		return ignore
	case f.NoDeploymentID || f.Paused:
		return await
	case f.IsCurrent && f.RetryNotDue:
		return reportOnly
	case f.IsCurrent && f.Drifted && (f.MustCorrect || f.Own): // before sweep, which may fail for a long time
		return correct
	case f.IsCurrent && f.OldCopies && f.WaitsFor == "" && !f.WaitsForValues:
		return deploy
	case f.IsCurrent && f.Leftovers:
		return sweep
	case f.IsCurrent && f.OldNamespaceLabels:
		return relabel
	case f.IsCurrent:
		return reportOnly
	case f.WaitsFor != "" || f.WaitsForValues:
		return await
	case f.RetryNotDue:
		return reportOnly
	}
	return deploy
}

// removalFacts is the input of decideRemoval: what is known about a BundleDeployment that the watch no longer shows, or shows as being deleted.
type removalFacts struct {
	// Own means that the BundleDeployment is the one of the agent itself.
	Own bool
	// Installed means that the member has a release of the BundleDeployment.
	Installed bool
	// Copied means that a deployment of this run that stored no release may have copied Secrets and ConfigMaps of the hub for it.
	Copied bool
	// Kept means that its releases are recorded as those that stay, see restored.go.
	Kept bool
	// DelayNotPassed means that Timing.RemovalDelay has not passed since the BundleDeployment disappeared.
	DelayNotPassed bool
	// HubChanged means that the hub was restored from a backup, may be another one, or has created its objects anew, and that it is not recorded yet which
	// releases stay, see restored.go.
	HubChanged bool

	// Asked means that the hub was asked. The facts below are not known before that.
	Asked bool
	// Confirmed means that the API server of the hub has answered that the BundleDeployment is gone. If a Bundle deploys the agent (HasOwnRelease), or
	// the UID of the agent's own BundleDeployment is recorded (restored.go), the API server has also answered whether that one exists, and if so, it
	// has the recorded UID.
	Confirmed bool
	// Rejected means that the API server of the hub has rejected the credential of the agent.
	Rejected bool
	// NoneCached means that the watch shows no BundleDeployment at all.
	NoneCached bool
	// HasOwnRelease means that the member has a release of the agent's own BundleDeployment: a Bundle deploys the agent.
	HasOwnRelease bool
	// AgentGone means that the API server of the hub has answered that the agent's own BundleDeployment is gone.
	AgentGone bool
	// Others means that the watch shows BundleDeployments that are not being deleted.
	Others bool
	// GoneAlone means that only the agent's own BundleDeployment is gone, and that nobody is expected to bring it back. All of these are true:
	//   - It has been gone for Timing.RemovalAlone while there were Others, since this run or an earlier one, or the hub has deleted it because it
	//     no longer manages the agent.
	//   - It has been gone for Timing.RemovalRecheck in this run.
	//   - Others is true.
	GoneAlone bool
}

// removalAction is the result of decideRemoval.
type removalAction int

const (
	forget               removalAction = iota // forget the BundleDeployment
	keep                                      // leave its releases as they are
	waitForDelay                              // decide again when Timing.RemovalDelay has passed
	recordKept                                // record which releases stay, then decide again
	askHub                                    // ask the hub, then decide again
	keepBecauseRejected                       // leave the releases, log why, and decide again after Timing.RemovalRecheck
	retryRemoval                              // decide again after a growing pause
	keepBecauseAgentGone                      // leave the releases, record since when the agent's own BundleDeployment is gone, and decide again as after keepBecauseRejected
	uninstallAll                              // uninstall the releases and delete the copies; of the agent's own release only the history
)

// decideRemoval decides whether the releases of a BundleDeployment that is gone are uninstalled. That cannot be undone, so each case before the
// last one is a protection.
func decideRemoval(f removalFacts) removalAction {
	switch {
	// There is nothing to uninstall. If the releases were kept, a person has uninstalled them. Copies without a release are not recorded as kept: they stay
	// if the hub was restored or may be another one.
	case !f.Installed && (!f.Copied || f.Kept || f.HubChanged):
		return forget
	// The hub was restored from a backup, or is another one: the BundleDeployment is missing there, but nobody has deleted it.
	case f.Kept:
		return keep
	// While the namespace of the Cluster is deleted, its objects disappear one by one, and the agent's own BundleDeployment may be the last.
	case f.DelayNotPassed:
		return waitForDelay
	// The hub was restored or may be another one, and that is not recorded yet: record first which releases stay.
	case f.HubChanged:
		return recordKept
	// The watch alone is no proof: the hub is asked.
	case !f.Asked:
		return askHub
	// Fleet's own hub deletes a Cluster's BundleDeployments, namespace and credential together. The watch has shown the deletions, but the hub can no
	// longer confirm them, and a namespace that was deleted by mistake looks the same.
	case f.Rejected && f.NoneCached:
		return keepBecauseRejected
	// The hub still has the BundleDeployment, or its API server has not answered.
	case !f.Confirmed:
		return retryRemoval
	// The agent's own BundleDeployment is gone too, and the hub has not asked the agent to uninstall itself: the whole Cluster is deleted on the hub,
	// because it moves to another workspace, or its namespace was deleted. If only the agent's own BundleDeployment has been gone for
	// Timing.RemovalAlone, or the hub has deleted it because it no longer manages the agent (GoneAlone), its history is removed; HasOwnRelease is
	// then false for the other releases.
	case f.HasOwnRelease && f.AgentGone && !(f.Own && f.GoneAlone):
		return keepBecauseAgentGone
	}
	return uninstallAll
}

// unmet describes the Bundles of dependsOn that are not in an accepted state; "" if all are. The texts are those of Fleet's own
// agent. An entry selects by its labels and its name; an empty one requires nothing.
func unmet(bd *fleet.BundleDeployment, all []*fleet.BundleDeployment) string {
	var notReady []string
	for _, ref := range bd.Spec.DependsOn {
		selector := ref.Selector.DeepCopy()
		if selector == nil {
			selector = &metav1.LabelSelector{}
		}
		workspace := bd.Labels[fleet.BundleNamespaceLabel]
		if ref.Name != "" {
			selector = metav1.AddLabelToSelector(selector, fleet.BundleNameLabel, ref.Name)
			selector = metav1.AddLabelToSelector(selector, fleet.BundleNamespaceLabel, workspace)
		}
		matching, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return fmt.Sprintf("dependsOn has an invalid selector: %v", err)
		}
		if matching.Empty() {
			continue
		}
		accepted := ref.AcceptedStates
		if len(accepted) == 0 {
			accepted = []fleet.BundleState{fleet.Ready}
		}
		found := false
		for _, other := range all {
			if other.Name == bd.Name || !matching.Matches(labels.Set(other.Labels)) {
				continue
			}
			found = true
			if name := bundleName(other); !slices.Contains(accepted, fleetstatus.BundleState(other.Spec, other.Status)) && !slices.Contains(notReady, name) {
				notReady = append(notReady, name)
			}
		}
		if !found {
			return fmt.Sprintf("list bundledeployments: no bundles matching labels %s in namespace %s", matching, workspace)
		}
	}
	if len(notReady) == 0 {
		return ""
	}
	slices.Sort(notReady) // the cache has no order
	return fmt.Sprintf("dependent bundle(s) are not ready: [%s]", strings.Join(notReady, ", "))
}

func bundleName(bd *fleet.BundleDeployment) string {
	if name := bd.Labels[fleet.BundleNameLabel]; name != "" {
		return name
	}
	return bd.Name
}
