package cli

import (
	"fmt"

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
BundleDeployments, and the agent. The timeline contains the creation of these objects, the last change of each condition, and events,
which the API server keeps for an hour. CLUSTER can also be the name of a request: an agent whose request waits or was refused has no
Cluster. The command reads no Secret.`,
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
			if waiting := waitsForApproval(d.Objects); waiting != "" {
				fmt.Fprintf(s.Out, "\nNext: %s\n  or: %s\n", hub.command(hub.namespace, "approve", waiting), hub.command(hub.namespace, "deny", waiting))
			} else if next := nextStep(hub, d); next != "" {
				fmt.Fprintf(s.Out, "\nNext: %s\n", next)
			}
			return nil
		},
	}
}

// nextStep returns the command to run next for a cluster without a request that waits for approval. It is empty if the cluster is registered
// and connected, or belongs to another controller.
func nextStep(hub *namespacedHub, d *describe.Description) string {
	if d.Cluster != nil {
		switch d.Cluster.State {
		case view.StateRegistered, view.StateManaged:
			return ""
		case view.StateQuarantined:
			return hub.command(hub.namespace, "release", d.Name)
		}
	}
	return hub.command(hub.namespace, "check", d.Name)
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
