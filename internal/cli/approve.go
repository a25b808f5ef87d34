package cli

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const flagMessage = "message"

func approveCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "approve",
		Usage:     "grant an agent the identity it asks for",
		ArgsUsage: "REQUEST|CLUSTER",
		Description: `REQUEST is a ClusterRegistration that is waiting for approval, or was refused because the identity it asks for is in use;
muster requests lists them. CLUSTER stands for the only such request about that cluster. An approval is as good as a proof: the
agent that made the request becomes the agent of the cluster, in place of any present one.`,
		Flags:  decisionFlags(),
		Action: func(c *cli.Context) error { return decide(c, s, fleet.DecisionApproved) },
	}
}

func denyCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "deny",
		Usage:       "refuse an agent's request, permanently",
		ArgsUsage:   "REQUEST|CLUSTER",
		Description: "The agent writes the message into its log once, and looks every ten minutes or so whether you have changed your mind. What was granted already stays; see muster revoke.",
		Flags:       decisionFlags(),
		Action:      func(c *cli.Context) error { return decide(c, s, fleet.DecisionDenied) },
	}
}

func decisionFlags() []cli.Flag {
	return append(hubFlags(), &cli.StringFlag{Name: flagMessage, Aliases: []string{"m"}, Usage: "`TEXT` that says why; that of a denial is written to the agent's log"})
}

// mostOfAMessage is what the kind allows.
const mostOfAMessage = 1024

func decide(c *cli.Context, s Streams, decision fleet.Decision) error {
	name, err := oneArgument(c, "the name of the REQUEST, or of the CLUSTER it is about")
	if err != nil {
		return err
	}
	approval := fleet.RegistrationApproval{Decision: decision, Message: c.String(flagMessage)}
	if len([]rune(approval.Message)) > mostOfAMessage {
		return fmt.Errorf("--message has more than %d characters", mostOfAMessage)
	}
	hub, err := connect(c)
	if err != nil {
		return err
	}
	request, err := hub.FindRequest(c.Context, hub.namespace, name)
	if err != nil {
		return err
	}
	if err := hub.Decide(c.Context, request, approval); err != nil {
		return err
	}
	v := view.OfRequest(request)
	fmt.Fprintf(s.Out, "Request %s/%s for Cluster %s is %s.\n", v.Namespace, v.Name, v.Cluster, decisionWords[decision])
	return nil
}

var decisionWords = map[fleet.Decision]string{fleet.DecisionApproved: "approved", fleet.DecisionDenied: "denied"}
