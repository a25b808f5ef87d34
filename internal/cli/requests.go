package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	flagGranted = "granted"
	flagMessage = "message"
)

func requestsCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "requests",
		Usage: "list registration requests that are waiting or were refused, and why",
		Flags: listFlags(&cli.BoolFlag{Name: flagGranted, Usage: "include granted requests"}),
		Action: list(s, "ClusterRegistrations", "No waiting or refused requests", func(c *cli.Context, hub *namespacedHub, namespace string) ([]view.Request, error) {
			return admin.Collect(c.Context, hub.Fleet.ClusterRegistrations(namespace).List, func(r *fleet.ClusterRegistration) (view.Request, bool) {
				v := view.OfRequest(r)
				return v, v.State != view.StateGranted || c.Bool(flagGranted)
			})
		}, requestColumns),
	}
}

var requestColumns = columns[view.Request]{
	kind:       "ClusterRegistration",
	name:       func(v view.Request) (string, string) { return v.Namespace, v.Name },
	header:     []string{"NAMESPACE", "NAME", "CLUSTER", "TOKEN", "STATE", "REASON", "CREATED"},
	wideHeader: []string{"CLIENT-ID", "CREATED-BY", "LABELS", "MESSAGE"},
	row: func(v view.Request, now time.Time) []string {
		return []string{v.Namespace, v.Name, v.Cluster, v.Token, v.State, v.Reason, view.Ago(v.Created, now)}
	},
	wideRow: func(v view.Request, _ time.Time) []string {
		return []string{shorten(v.ClientID), v.Creator, v.LabelsText(), v.Message}
	},
}

func approveCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "approve",
		Usage:     "grant an agent the identity that it requests",
		ArgsUsage: "REQUEST|CLUSTER",
		Description: `REQUEST is a ClusterRegistration that is waiting for approval, or was refused because another agent has the identity that it
requests; muster requests lists them. CLUSTER selects the only such request about that cluster. If a request has the name of a cluster,
` + admin.RequestPrefix + `NAME selects that request. An approval replaces a proof of identity: the agent that made the request becomes the
agent of the cluster, in place of the current one. The command waits until the hub has granted the request, and fails if something else
prevents that.`,
		Flags:  append(decisionFlags(), timeoutFlag("to wait for the hub", time.Minute)),
		Action: func(c *cli.Context) error { return decide(c, s, fleet.DecisionApproved) },
	}
}

func denyCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "deny",
		Usage:     "refuse an agent's request, permanently",
		ArgsUsage: "REQUEST|CLUSTER",
		Description: `REQUEST and CLUSTER select a request as for muster approve. The agent logs the message once, and checks about every ten minutes
whether the decision has changed. It does not affect a credential that was already granted; see muster revoke.`,
		Flags:  decisionFlags(),
		Action: func(c *cli.Context) error { return decide(c, s, fleet.DecisionDenied) },
	}
}

func decisionFlags() []cli.Flag {
	return append(hubFlags(), &cli.StringFlag{Name: flagMessage, Aliases: []string{"m"}, Usage: "`TEXT` with the reason; the agent logs that of a denial"})
}

func decide(c *cli.Context, s Streams, decision fleet.Decision) error {
	const limit = 1024 // in the CustomResourceDefinition
	approval := fleet.RegistrationApproval{Decision: decision, Message: c.String(flagMessage)}
	if len([]rune(approval.Message)) > limit {
		return fmt.Errorf("--message has more than %d characters", limit)
	}
	hub, name, err := connectWithName(c, "the name of the REQUEST, or of the CLUSTER it is about")
	if err != nil {
		return err
	}
	request, err := hub.FindRequest(c.Context, hub.namespace, name)
	if err != nil {
		return err
	}
	v := view.OfRequest(request)
	title := fmt.Sprintf("Request %s/%s for Cluster %s", v.Namespace, v.Name, v.Cluster)
	isApproval := decision == fleet.DecisionApproved
	switch {
	case v.State == view.StateGranted:
		return fmt.Errorf("%s is granted already, and a decision changes nothing; to lock its agent out: %s", title, hub.command(v.Namespace, "revoke", v.Cluster))
	case isApproval && v.State == view.StateRefused && !admin.CanBeDecided(request):
		return fmt.Errorf("%s is refused, and an approval does not change that: %s: %s", title, v.Reason, view.Printable(v.Message))
	}
	if err := hub.Decide(c.Context, request, approval); err != nil {
		return err
	}
	if !isApproval {
		fmt.Fprintf(s.Out, "%s is denied.\n", title)
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	if err := hub.AwaitGranted(ctx, request); err != nil {
		return fmt.Errorf("the request is approved, but not granted: %w", err)
	}
	fmt.Fprintf(s.Out, "%s is granted. To see whether its agent connects: %s\n", title, hub.command(v.Namespace, "clusters", v.Cluster))
	return nil
}
