package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/check"
	"github.com/muster-fleet/muster/internal/join"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/version"
)

const flagIgnorePreflight = "ignore-preflight"

func joinCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "join",
		Usage:     "register this cluster with a hub, by the values of a registration token",
		ArgsUsage: "VALUES-FILE",
		Description: `It runs against the member, and needs only the values, no access to the hub. On the hub, muster token create NAME -o values prints
them; - reads them from the standard input:

    muster --context hub -n fleet-default token create east -o values | muster join - --context east

It checks the values and the way to the hub, from where it runs, and then installs the chart fleet-agent, which is in this program. Then it
waits until the agent is registered, and prints what it waits for. If it fails, it prints how to undo what it has made.

If the member has an agent, it does what is left to do: nothing for an agent that is registered with this hub; it waits for one that has the
same values; one with other values, or with a credential that the hub rejects, gets these values. A member that is registered with another
hub or in another namespace of the hub is left as it is.`,
		Flags: append(kubeFlags(joinUsage, true),
			&cli.StringFlag{Name: flagAgentNamespace, Value: registration.DefaultSystemNamespace, Usage: "`NAMESPACE` of the agent on the member"},
			&cli.BoolFlag{Name: flagDryRun, Usage: "make the checks, and print what would be done"},
			&cli.BoolFlag{Name: flagIgnorePreflight, Usage: "install although a check failed: the member may have another network than this machine"},
			timeoutFlag("to wait for the registration", 5*time.Minute),
		),
		Action: func(c *cli.Context) error { return joinMember(c, s) },
	}
}

func joinMember(c *cli.Context, s Streams) error {
	file, err := oneArgument(c, "the VALUES-FILE, or - for the standard input")
	if err != nil {
		return err
	}
	var values []byte
	if file == "-" {
		values, err = io.ReadAll(s.In)
	} else {
		values, err = os.ReadFile(file)
	}
	if err != nil {
		return fmt.Errorf("the values: %w", err)
	}
	to, err := given(c.Lineage())
	if err != nil {
		return err
	}
	agentNamespace := c.String(flagAgentNamespace)
	if *to.Namespace != "" {
		return fmt.Errorf("--%s is for objects on a hub: pass the namespace of the agent with --%s", flagNamespace, flagAgentNamespace)
	}
	config, _, err := load(to)
	if err != nil {
		return fmt.Errorf("cannot connect to the member: pass --kubeconfig, or set KUBECONFIG: %w", err)
	}
	member, err := join.New(check.Inputs{Member: config, AgentNamespace: agentNamespace, Version: version.Version, Now: s.Now}, values)
	if err != nil {
		return err
	}
	objects, err := member.Objects()
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	action, why, err := member.Plan(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Err, "member: %s\n", why)
	if action == join.Nothing {
		fmt.Fprintln(s.Out, "Nothing was changed.")
		return nil
	}
	preflight := member.Preflight(ctx)
	if preflight.Result != check.Pass {
		preflight.Print(s.Err, false)
	}
	if preflight.ExitCode() != check.ExitGood && !c.Bool(flagIgnorePreflight) {
		return fmt.Errorf("nothing was changed: %s; --%s goes on although a check failed", preflight.Summary, flagIgnorePreflight)
	}
	if c.Bool(flagDryRun) {
		printPlan(s.Out, action, agentNamespace, objects)
		return nil
	}

	cluster, err := applyAndAwait(ctx, s, member)
	if err != nil {
		if undo := member.Undo(); len(undo) > 0 {
			fmt.Fprintln(s.Err, "The same command continues from here. To undo what it has made on the member:")
			for _, words := range undo {
				fmt.Fprintln(s.Err, "    "+to.program(words[0], agentNamespace, words[1:]...))
			}
		}
		return err
	}
	workspace, name, _ := strings.Cut(cluster, "/")
	fmt.Fprintf(s.Out, "This member is registered as Cluster %s.\nTo see it on the hub: muster -n %s check %s\n", cluster, workspace, name)
	return nil
}

func applyAndAwait(ctx context.Context, s Streams, member *join.Joiner) (cluster string, err error) {
	began := s.Now()
	if err := member.Apply(ctx); err != nil {
		return "", err
	}
	return member.Await(ctx, func(state string) {
		fmt.Fprintf(s.Err, "%6.1f s  member: %s\n", s.Now().Sub(began).Seconds(), view.Printable(state))
	})
}

func printPlan(w io.Writer, action join.Action, namespace string, objects []string) {
	switch action {
	case join.Install:
		fmt.Fprintf(w, "It would install the chart fleet-agent in namespace %s, with these objects:\n", namespace)
		for _, object := range objects {
			fmt.Fprintln(w, "    "+object)
		}
	case join.Replace:
		fmt.Fprintf(w, "It would write the values to Secret %s/%s.\n", namespace, registration.BootstrapSecret)
	case join.Wait:
		fmt.Fprintln(w, "It would wait for the registration.")
	case join.Nothing:
	}
	fmt.Fprintln(w, "Nothing was changed: it was a dry run.")
}
