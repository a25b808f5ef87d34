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

// facts is the input of decide.
type facts struct {
	// Name is the key of the BundleDeployment.
	Name string
	// Wanted: the BundleDeployment exists and is not being deleted.
	Wanted bool
	// Elsewhere: it is meant for an agent in another namespace. While an agent moves, the old and the new one see the same
	// BundleDeployment.
	Elsewhere bool
	// Empty: the hub has not set a deployment ID yet.
	Empty bool
	// Paused: nothing may change now.
	Paused bool
	// Current: the release on the cluster is what is to be deployed.
	Current bool
	// Leftovers: objects of failed attempts are left beside that release.
	Leftovers bool
	// WaitsFor names what has to be deployed first; "" if nothing is missing.
	WaitsFor string
	// Drifted: the cluster differs from what was deployed. Correct: drift is to be undone.
	Drifted, Correct bool
	// TooEarly: the pause after the last attempt has not passed.
	TooEarly bool
}

// action is the result of decide.
type action int

const (
	observe action = iota // only report the state
	deploy                // install or upgrade
	correct               // deploy the same again to undo drift
	sweep                 // remove the objects that failed attempts left
	await                 // do nothing until something else is deployed
	hold                  // change nothing: paused, or nothing to deploy yet
	remove                // uninstall
	forget                // remove the history, keep the objects
	ignore                // do nothing and report nothing: another agent does
)

// decide chooses the action for one BundleDeployment. An agent never uninstalls an agent: it would be itself, or another
// one in the same cluster.
func decide(f facts) action {
	switch {
	case !f.Wanted && isAgent(f.Name):
		return forget
	case !f.Wanted:
		return remove
	case f.Elsewhere:
		return ignore
	case f.Empty || f.Paused:
		return hold
	case f.Current && f.TooEarly:
		return observe
	case f.Current && f.Drifted && (f.Correct || isAgent(f.Name)): // before sweep, which may fail for a long time
		return correct
	case f.Current && f.Leftovers:
		return sweep
	case f.Current:
		return observe
	case f.WaitsFor != "":
		return await
	case f.TooEarly:
		return observe
	}
	return deploy
}

// isAgent reports whether a BundleDeployment is of a Bundle that runs an agent, by its name.
func isAgent(name string) bool {
	return name == "fleet-agent" || strings.HasPrefix(name, "fleet-agent-")
}

func (a action) String() string {
	return [...]string{"observe", "deploy", "correct", "sweep", "await", "hold", "remove", "forget", "ignore"}[a]
}

// unmet describes the first entry of dependsOn that is not fulfilled; "" if all are.
func unmet(bd *fleet.BundleDeployment, all []*fleet.BundleDeployment) string {
	for _, ref := range bd.Spec.DependsOn {
		selector := labels.Nothing()
		if ref.Selector != nil {
			var err error
			if selector, err = metav1.LabelSelectorAsSelector(ref.Selector); err != nil {
				return fmt.Sprintf("dependsOn has an invalid selector: %v", err)
			}
		}
		accepted := ref.AcceptedStates
		if len(accepted) == 0 {
			accepted = []fleet.BundleState{fleet.Ready}
		}
		found := false
		for _, other := range all {
			named := ref.Name != "" && bundleName(other) == ref.Name
			if other.Name == bd.Name || !named && !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			found = true
			if state := fleetstatus.BundleState(other.Spec, other.Status); !slices.Contains(accepted, state) {
				return fmt.Sprintf("waiting for Bundle %s, which is %s", bundleName(other), state)
			}
		}
		if !found {
			wanted := ref.Name
			if wanted == "" {
				wanted = "with labels " + metav1.FormatLabelSelector(ref.Selector)
			}
			return fmt.Sprintf("waiting for Bundle %s, which is not deployed to this cluster", wanted)
		}
	}
	return ""
}

func bundleName(bd *fleet.BundleDeployment) string {
	if name := bd.Labels[fleet.BundleNameLabel]; name != "" {
		return name
	}
	return bd.Name
}
