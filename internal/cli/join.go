package cli

import (
	"bytes"
	"context"
	"errors"
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
		Usage:     "register this cluster with a hub, with the values of a registration token",
		ArgsUsage: "VALUES-FILE",
		Description: `The command connects to the member, and needs no kubeconfig of the hub. On the hub, muster token create NAME -o values prints the
values. If VALUES-FILE is -, they are read from the standard input:

    muster --context hub -n fleet-default token create east -o values | muster join - --context east

It checks the values and the connection from this machine to the hub, installs the chart fleet-agent, which is part of this program, and
waits until the agent is registered. If it fails, it prints how to undo its changes.

If the member already has an agent, the result depends on the state of that agent:

    registered with this hub             nothing is changed
    not registered, same values          the command waits for the registration
    not registered, other values         the agent gets the new values
    the hub rejects its credential       the agent gets the new values
    the hub has another address now      the agent gets the new values
    connected to another hub, or in      the command fails, and changes nothing
    another namespace of this hub`,
		Flags: append(kubeFlags(joinUsage, true),
			&cli.StringFlag{Name: flagAgentNamespace, Value: registration.DefaultSystemNamespace, Usage: "`NAMESPACE` of the agent on the member"},
			&cli.BoolFlag{Name: flagDryRun, Usage: "run the checks, and print what would be done"},
			&cli.BoolFlag{Name: flagIgnorePreflight, Usage: "install although a check failed, for example because only the member can reach the hub"},
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
		return fmt.Errorf("reading the values: %w", err)
	}
	if len(bytes.TrimSpace(values)) == 0 {
		if file == "-" {
			return errors.New("the standard input is empty: the command before the pipe has printed no values, and its error is above")
		}
		return fmt.Errorf("%s is empty: store the output of `muster token create NAME -o values` in it", file)
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
	fmt.Fprintf(s.Err, "member: %s\n", view.Printable(why))
	if action == join.Nothing {
		fmt.Fprintln(s.Out, "Nothing was changed.")
		return nil
	}
	preflight := member.Preflight(ctx)
	if preflight.Result != check.Pass {
		preflight.Print(s.Err, false)
	}
	if preflight.ExitCode() != check.ExitGood && !c.Bool(flagIgnorePreflight) {
		return fmt.Errorf("nothing was changed: %s; --%s installs although a check failed", preflight.Summary, flagIgnorePreflight)
	}
	if c.Bool(flagDryRun) {
		printPlan(s.Out, action, agentNamespace, objects)
		return nil
	}

	cluster, err := applyAndAwait(ctx, s, member)
	if err != nil {
		if undo := member.Undo(); len(undo) > 0 {
			fmt.Fprintln(s.Err, "To continue, repeat the command. To undo its changes on the member:")
			for _, words := range undo {
				fmt.Fprintln(s.Err, "    "+to.program(words[0], agentNamespace, words[1:]...))
			}
		}
		return err
	}
	fmt.Fprint(s.Out, joinedMessage(cluster))
	return nil
}

// joinedMessage is printed after a registration. The name of the Cluster is from a Secret of the member.
func joinedMessage(cluster string) string {
	workspace, name, _ := strings.Cut(cluster, "/")
	return fmt.Sprintf("This member is registered as Cluster %s.\nTo see it on the hub: %s\n",
		view.Printable(cluster), view.Printable(shellWords("muster", "-n", workspace, "check", name)))
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
		fmt.Fprintf(w, "Without --dry-run, this command would install the chart fleet-agent in namespace %s, with these objects:\n", namespace)
		for _, object := range objects {
			fmt.Fprintln(w, "    "+object)
		}
	case join.Replace:
		fmt.Fprintf(w, "Without --dry-run, this command would write the values to Secret %s/%s.\n", namespace, registration.BootstrapSecret)
	case join.Wait:
		fmt.Fprintln(w, "Without --dry-run, this command would wait for the registration.")
	case join.Nothing:
	}
	fmt.Fprintln(w, "Nothing was changed: it was a dry run.")
}
