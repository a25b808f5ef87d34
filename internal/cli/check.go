package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/check"
	"github.com/muster-fleet/muster/pkg/version"
)

const (
	flagMember           = "member"
	flagMemberKubeconfig = "member-kubeconfig"
	flagAgentNamespace   = "agent-namespace"
	flagSystemNamespace  = "system-namespace"
	flagToken            = "token"
	flagProbe            = "probe"
)

func checkCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "find out why a cluster is not connected",
		ArgsUsage: "[CLUSTER]",
		Description: `muster check                                         the hub, and the address that agents get
muster check CLUSTER                                 a Cluster, or a request with that name; an imported member through its kubeconfig
muster check CLUSTER --member-kubeconfig FILE        the Cluster, and the agent on the member
muster check --member --member-kubeconfig FILE       only the member, without a kubeconfig of the hub

The first line names the first check that failed, which is the cause, and the remedy follows. Without -o wide, only the checks that did not
pass are printed. docs/checks.md explains each check. The command sends requests to
the hub and the member only, and prints no value of a Secret. It changes nothing, except with --probe, which creates a Job next to an
installed agent and deletes it. The exit code is 0 if no check failed or is unknown (warnings are allowed), 1 if a check failed, 2 for an
invalid command line, and 3 if no check failed but some are unknown.`,
		Flags: append(append(hubFlags(), memberFlags("the member")...),
			&cli.BoolFlag{Name: flagProbe, Usage: "check the connection to the hub from a Pod on the member, in a Job that is deleted afterwards"},
			&cli.BoolFlag{Name: flagMember, Usage: "check only the member"},
			&cli.StringFlag{Name: flagAgentNamespace, Usage: "`NAMESPACE` of the agent on the member; default: the one in the Cluster, or else cattle-fleet-system"},
			&cli.StringFlag{Name: flagSystemNamespace, Usage: "`NAMESPACE` of the hub; default: cattle-fleet-system"},
			&cli.StringFlag{Name: flagToken, Usage: "`NAME` of a registration token to check; default: the token of the request"},
			&cli.StringFlag{Name: flagOutput, Aliases: []string{"o"}, Usage: "`FORMAT` of the output: wide (all checks), json; default: human-readable text about the checks that did not pass"},
			timeoutFlag("of all checks", 2*time.Minute),
		),
		Action: func(c *cli.Context) error {
			in, err := checkInputs(c)
			if err != nil {
				return cli.Exit(err, check.ExitUsage)
			}
			in.Version, in.Now = version.Version, s.Now
			ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
			defer cancel()
			return check.Run(ctx, in).Report(s.Out, c.String(flagOutput))
		},
		OnUsageError: func(c *cli.Context, err error, sub bool) error {
			return cli.Exit(wrongFlag(c, err, sub), check.ExitUsage)
		},
	}
}

// checkInputs reads the arguments and the kubeconfigs. It sends nothing.
func checkInputs(c *cli.Context) (in check.Inputs, err error) {
	in = check.Inputs{
		Cluster: c.Args().First(), Token: c.String(flagToken), Probe: c.Bool(flagProbe),
		SystemNamespace: c.String(flagSystemNamespace), AgentNamespace: c.String(flagAgentNamespace),
	}
	switch {
	case c.Args().Len() > 1:
		return in, fmt.Errorf("%s needs at most one argument, the name of the CLUSTER, and got %d; see --help", c.Command.HelpName, c.Args().Len())
	case c.Bool(flagMember) && (in.Cluster != "" || in.Token != ""):
		return in, errors.New("--member checks only a member: omit CLUSTER and --token, or omit --member")
	case c.Bool(flagMember) && c.String(flagMemberKubeconfig) == "":
		return in, fmt.Errorf("--%s needs --%s", flagMember, flagMemberKubeconfig)
	case in.Probe && !c.Bool(flagMember) && in.Cluster == "":
		return in, errors.New("--probe needs a member: give --member, or the name of the CLUSTER")
	case !slices.Contains(check.Formats, c.String(flagOutput)):
		return in, fmt.Errorf("--output is %q: it must be wide or json", c.String(flagOutput))
	}
	if in.Cluster != "" {
		if err := checkName(in.Cluster); err != nil {
			return in, err
		}
	}
	if file := c.String(flagMemberKubeconfig); file != "" {
		if in.Member, err = loadMember(file, c.String(flagMemberContext)); err != nil {
			return in, fmt.Errorf("--%s: %w", flagMemberKubeconfig, err)
		}
	}
	if c.Bool(flagMember) {
		return in, nil
	}
	to, err := given(c.Lineage())
	if err != nil {
		return in, err
	}
	in.HubFlags = to.shellFlags()
	in.Hub, in.Namespace, err = hubConfig(to)
	return in, err
}
