package cli

import (
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/internal/describe"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

func describeCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "describe",
		Usage:     "show what belongs to a cluster, and what has happened to it",
		ArgsUsage: "CLUSTER",
		Description: `The tree contains the registration tokens and requests, the cluster namespace with the identities of the agent and its
BundleDeployments, the Bundles that the hub does not deploy to the cluster because of an error, and the agent. The timeline contains the
creation of these objects, the last change of each condition, and events, which the API server keeps for an hour. CLUSTER can also be the name
of a request: an agent whose request waits or was refused has no Cluster. The command reads no Secret.`,
		Flags: append(hubFlags(), outputFlag()),
		Action: func(c *cli.Context) error {
			hub, name, err := connectWithName(c, "the name of the CLUSTER, or of a request")
			if err != nil {
				return err
			}
			d, err := describe.Of(c.Context, hub.Hub, hub.namespace, name, s.Now())
			if err != nil {
				return err
			}
			kind := "ClusterRegistration"
			if d.Cluster != nil {
				kind = "Cluster"
			}
			if done, err := printObject(c, s.Out, kind, hub.namespace, name, d); done {
				return err
			}
			if err := d.Print(s.Out, s.Now()); err != nil {
				return err
			}
			for i, next := range nextSteps(hub, d) {
				fmt.Fprintln(s.Out, []string{"\nNext:", "  or:"}[min(i, 1)], next)
			}
			return nil
		},
	}
}

// nextSteps returns the commands of which a person runs one next. There are none if the cluster is registered, connected and ready, if it belongs
// to another controller, or if no command of muster or kubectl is the remedy.
func nextSteps(hub *namespacedHub, d *describe.Description) []string {
	command := func(words ...string) []string { return []string{hub.command(hub.namespace, words...)} }
	if waiting := first(d.Objects, waitsForApproval); waiting != nil {
		return append(command("approve", waiting.Name), command("deny", waiting.Name)...)
	}
	if d.Cluster == nil {
		return command("check", d.Name)
	}
	switch state, reason := d.Cluster.State, d.Cluster.Reason; {
	case state == view.StateManaged, state == view.StateRegistered && slices.Contains([]string{"", fleet.ReasonBundlesMissing}, reason):
		return nil // the message of BundlesMissing names the releases, and what to do
	case state == view.StateRegistered && isOfReady(d) && reason != fleet.ReasonDeploymentsStalled:
		// The check would name this command again. Without a Bundle, the message says what to do.
		var steps []string
		if b := first(d.Objects, isRefused); b != nil {
			steps = append(steps, hub.program("kubectl", b.Namespace, "describe", "bundles.fleet.cattle.io", b.Name))
		}
		if b := first(d.Objects, isNotReady); b != nil {
			steps = append(steps, hub.program("kubectl", b.Namespace, "describe", "bundledeployments.fleet.cattle.io", b.Name))
		}
		return steps
	case state == view.StateQuarantined:
		return []string{hub.command(hub.namespace, "revoke", d.Name) + " # if the credential may be stolen; then release", hub.command(hub.namespace, "release", d.Name)}
	case d.Cluster.WayIn == view.WayAgent && (reason == fleet.ReasonCredentialExpired || reason == fleet.ReasonCredentialRevoked):
		return []string{hub.registerAgain(hub.namespace, d.Name)}
	}
	return command("check", d.Name)
}

// isOfReady reports whether condition Ready determines the state of the cluster: a Bundle is the cause, and not the connection.
func isOfReady(d *describe.Description) bool {
	ready := fleetstatus.Condition(d.Conditions, fleet.ConditionReady)
	return ready.Status == corev1.ConditionFalse && ready.Reason == d.Cluster.Reason && ready.Message == d.Cluster.Message
}

// first returns the first object in the tree for which a function returns true, or nil.
func first(objects []*describe.Related, isOne func(*describe.Related) bool) *describe.Related {
	for _, r := range objects {
		if isOne(r) {
			return r
		}
		if found := first(r.Objects, isOne); found != nil {
			return found
		}
	}
	return nil
}

func isRefused(r *describe.Related) bool { return r.Kind == "Bundle" }

func isNotReady(r *describe.Related) bool {
	return r.Kind == "BundleDeployment" && r.State != string(fleet.Ready)
}

func waitsForApproval(r *describe.Related) bool {
	return r.Kind == "ClusterRegistration" && r.State == view.StateWaiting && r.Reason == fleet.ReasonWaitingForApproval
}
