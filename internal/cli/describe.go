package cli

import (
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/describe"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
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
	if waiting := waitsForApproval(d.Objects); waiting != "" {
		return append(command("approve", waiting), command("deny", waiting)...)
	}
	if d.Cluster == nil {
		return command("check", d.Name)
	}
	switch state, reason := d.Cluster.State, d.Cluster.Reason; {
	case state == view.StateManaged, state == view.StateRegistered && slices.Contains([]string{"", fleet.ReasonBundlesMissing}, reason):
		return nil // the message of BundlesMissing names the releases, and what to do
	case state == view.StateRegistered && (reason == fleet.ReasonNotReady || reason == fleet.ReasonDeployFailed):
		if b := notReady(d.Objects); b != nil {
			return []string{hub.program("kubectl", b.Namespace, "describe", "bundledeployments.fleet.cattle.io", b.Name)}
		}
	case state == view.StateQuarantined:
		return []string{hub.command(hub.namespace, "revoke", d.Name) + " # if the credential may be stolen; then release", hub.command(hub.namespace, "release", d.Name)}
	case d.Cluster.WayIn == view.WayAgent && (reason == fleet.ReasonCredentialExpired || reason == fleet.ReasonCredentialRevoked):
		return []string{hub.registerAgain(hub.namespace, d.Name)}
	}
	return command("check", d.Name)
}

// notReady returns the first BundleDeployment that is not ready, or nil.
func notReady(objects []*describe.Related) *describe.Related {
	for _, r := range objects {
		if r.Kind == "BundleDeployment" && r.State != string(fleet.Ready) {
			return r
		}
		if found := notReady(r.Objects); found != nil {
			return found
		}
	}
	return nil
}

// waitsForApproval returns the name of a request that waits for approval, or "".
func waitsForApproval(objects []*describe.Related) string {
	for _, r := range objects {
		if r.Kind == "ClusterRegistration" && r.State == view.StateWaiting && r.Reason == fleet.ReasonWaitingForApproval {
			return r.Name
		}
		if name := waitsForApproval(r.Objects); name != "" {
			return name
		}
	}
	return ""
}
