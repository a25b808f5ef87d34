package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/check"
	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/version"
)

// checkTimeout limits all checks together.
const checkTimeout = 2 * time.Minute

// checkCommand returns the command that runs the checks of a member in the pod of its agent, with the network, the DNS and the proxy of the pod.
// It uses the flags and environment variables of the agent.
func checkCommand(r *raw) *cli.Command {
	usage := func(err error) error { return cli.Exit(err, check.ExitUsage) }
	return &cli.Command{
		Name:  "check",
		Usage: "find out why this agent is not connected to its hub",
		Description: `Run it in the pod of the agent: kubectl -n cattle-fleet-system exec deployment/fleet-agent -- fleetagent check
The first line names the cause; with -o wide, all checks follow. docs/checks.md explains each check and the exit codes. It changes nothing and prints no value of a Secret.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` of the output: wide, json; default: human-readable text"},
		},
		Action: func(c *cli.Context) error {
			format := c.String("output")
			member, err := launch.RESTConfig(r.kubeconfig)
			err = errors.Join(r.checkNamespace(), err)
			switch {
			case c.Args().Present():
				return usage(fmt.Errorf("check takes no argument %q; see --help", c.Args().First()))
			case !slices.Contains(check.Formats, format):
				return usage(fmt.Errorf("--output is %q: it must be wide or json", format))
			case err != nil:
				return usage(err)
			}
			ctx, cancel := context.WithTimeout(c.Context, checkTimeout)
			defer cancel()
			in := check.Inputs{Member: member, AgentNamespace: r.config.Namespace, Version: version.Version, Now: time.Now}
			return check.Run(ctx, in).Report(c.App.Writer, format)
		},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error { return usage(fmt.Errorf("%w; see --help", err)) },
	}
}
