// Package cli is the command line of muster, the tool of a person who runs a hub.
package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/launch"
)

// Streams are where the output goes. Results go to Out, what happens meanwhile to Err, so that a pipe gets results only.
type Streams struct {
	Out, Err io.Writer
	// Terminal says whether Out is one.
	Terminal bool
	// Env looks up environment variables.
	Env func(string) string
	// Now tells the time.
	Now func() time.Time
}

const description = `It works on the same hub as kubectl: the current context of $KUBECONFIG or ~/.kube/config, unless
--kubeconfig and --context say otherwise. These, and --namespace, can be given before or after the command.
Installed in $PATH as kubectl-muster, it is a plugin: kubectl muster clusters -A.`

// App is the program. Its arguments have to pass through FlagsFirst.
func App(s Streams) *cli.App {
	app := launch.App("muster", "registers Kubernetes clusters with a hub")
	app.Description = description
	app.Writer = s.Out
	app.Flags = hubFlags()
	app.Commands = []*cli.Command{
		clustersCommand(s),
		importCommand(s),
		tokenCommand(s),
		requestsCommand(s),
		approveCommand(s),
		denyCommand(s),
		quarantineCommand(s),
		releaseCommand(s),
		revokeCommand(s),
		crdsCommand(s),
		demoCommand(s),
		helloCommand(s),
	}
	app.Action = unknownCommand(cli.ShowAppHelp)
	for _, command := range app.Commands {
		command.OnUsageError = app.OnUsageError
		if len(command.Subcommands) > 0 {
			command.Action = unknownCommand(cli.ShowSubcommandHelp)
		}
		for _, sub := range command.Subcommands {
			sub.OnUsageError = app.OnUsageError
		}
	}
	return app
}

// unknownCommand shows the help when no command was given, and refuses one that does not exist.
func unknownCommand(help cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if !c.Args().Present() {
			return help(c)
		}
		return fmt.Errorf("there is no command %q; see --help", c.Args().First())
	}
}
