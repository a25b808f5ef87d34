// Package cli implements the command line of muster, the tool for operators of a hub.
package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/muster-fleet/muster/internal/demo"
	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/crds"
)

// Streams are the input, output, environment and clock of a command. Results are written to Out and progress to Err, so that a pipe receives
// results only.
type Streams struct {
	Out, Err io.Writer
	// In is the standard input. A command reads it instead of a file if the argument is -.
	In io.Reader
	// Terminal says whether Out is a terminal.
	Terminal bool
	// Env looks up environment variables.
	Env func(string) string
	// Now is the clock.
	Now func() time.Time
}

const (
	flagKubeconfig = "kubeconfig"
	flagContext    = "context"
	flagNamespace  = "namespace"
	flagAll        = "all-namespaces"
	flagOutput     = "output"
	flagTimeout    = "timeout"
	flagLabel      = "label"
)

// App returns the program. The caller must pass its arguments through FlagsFirst.
func App(s Streams) *cli.App {
	app := launch.App("muster", "register Kubernetes clusters with a hub")
	app.Description = `The hub is the cluster of the current context in $KUBECONFIG or ~/.kube/config, as for kubectl, unless
--kubeconfig and --context name another. All flags below can be given before or after the command.
Installed in $PATH as kubectl-muster, it is a plugin: kubectl muster clusters -A.`
	app.Writer, app.Suggest, app.OnUsageError = s.Out, true, wrongFlag
	app.Flags = kubeFlags(hubUsage, false)
	app.Commands = []*cli.Command{
		checkCommand(s), clustersCommand(s), describeCommand(s), importCommand(s), joinCommand(s), tokenCommand(s), requestsCommand(s), approveCommand(s), denyCommand(s),
		quarantineCommand(s), releaseCommand(s), rotateCommand(s), revokeCommand(s), removeCommand(s), reportCommand(s), uiCommand(s),
		versionCommand(s), completionCommand(s), crdsCommand(s), demoCommand(s), helloCommand(s), proposeCommand(s),
	}
	app.Action = unknownCommand(cli.ShowAppHelp)
	for _, command := range app.Commands {
		if command.OnUsageError == nil {
			command.OnUsageError = app.OnUsageError
		}
		if len(command.Subcommands) > 0 {
			command.Action = unknownCommand(cli.ShowSubcommandHelp)
		}
		for _, sub := range command.Subcommands {
			sub.OnUsageError = app.OnUsageError
		}
	}
	return app
}

// unknownCommand prints the help if there is no command, and fails if the command does not exist.
func unknownCommand(help cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if !c.Args().Present() {
			return help(c)
		}
		err := fmt.Errorf("there is no command %q; see --help", c.Args().First())
		visible := slices.DeleteFunc(slices.Clone(c.Command.Subcommands), func(sub *cli.Command) bool { return sub.Hidden })
		suggestion := cli.SuggestCommand(visible, c.Args().First())
		// The library suggests its commands help and h, which muster does not have, and "" if no name has a letter of the word.
		if strings.Contains(suggestion, `"h`) || strings.Contains(suggestion, `""`) {
			return err
		}
		return fmt.Errorf("%w. %s", err, suggestion)
	}
}

// wrongFlag returns the error for a command line that the library cannot parse.
func wrongFlag(c *cli.Context, err error, _ bool) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	err = fmt.Errorf("%w; see --help", err)
	if !unknown {
		return err
	}
	if suggestion := cli.SuggestFlag(c.Command.Flags, strings.TrimLeft(name, "-"), false); suggestion != "" {
		return fmt.Errorf("%w. "+cli.SuggestDidYouMeanTemplate, err, suggestion)
	}
	return err
}

func crdsCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "crds",
		Usage:       "print the CustomResourceDefinitions as YAML",
		Description: "muster crds | kubectl apply --server-side -f -",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "clusternet", Usage: "print only those for a hub that serves Clusternet's agents"},
		},
		Action: withoutArguments(func(c *cli.Context) error {
			definitions := crds.YAML()
			if c.Bool("clusternet") {
				definitions = crds.ClusternetYAML()
			}
			_, err := s.Out.Write(definitions)
			return err
		}),
	}
}

func demoCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "start a hub and two members on this machine, and register clusters with a kubeconfig, with a token, and the hub's own cluster",
		Description: `The demo needs no root, no container engine and no registry. On a terminal it keeps running until Ctrl-C. Otherwise,
or with DEMO_EXIT=1, it checks the result, stops everything and exits. In a clone, scripts/demo builds what it needs and runs it.`,
		Action: withoutArguments(func(c *cli.Context) error {
			discardClientLog()
			return demo.Run(c.Context, demo.Options{
				Out:      s.Out,
				Terminal: printers.AllowsColorOutput(s.Out),
				Stay:     s.Terminal && s.Env("DEMO_EXIT") == "",
			})
		}),
	}
}

// helloCommand returns the command that the Pods of the demo run.
func helloCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:   "hello",
		Usage:  "print a line and run until terminated",
		Hidden: true,
		Action: withoutArguments(func(c *cli.Context) error {
			fmt.Fprintln(s.Out, "Hello.")
			<-c.Context.Done()
			return nil
		}),
	}
}

func timeoutFlag(what string, value time.Duration) cli.Flag {
	return &cli.DurationFlag{Name: flagTimeout, Value: value, Usage: "maximum `DURATION` " + what}
}

// withoutArguments returns an action that fails if there are arguments, which the given action would ignore.
func withoutArguments(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.Args().Present() {
			return fmt.Errorf("%s takes no argument %q; see --help", c.Command.HelpName, c.Args().First())
		}
		return action(c)
	}
}

// oneArgument returns the only argument of a command.
func oneArgument(c *cli.Context, what string) (string, error) {
	if c.Args().Len() != 1 {
		return "", fmt.Errorf("%s needs exactly one argument, %s, and got %d; see --help", c.Command.HelpName, what, c.Args().Len())
	}
	return c.Args().First(), nil
}

func checkName(name string) error {
	if why := validation.IsDNS1123Subdomain(name); len(why) > 0 {
		return fmt.Errorf("%q is not a valid object name: %s", name, why[0])
	}
	return nil
}

func parseLabels(pairs []string) (map[string]string, error) {
	labels := map[string]string{}
	var all []error
	for _, pair := range pairs {
		key, value, found := strings.Cut(pair, "=")
		why := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		switch {
		case !found:
			all = append(all, fmt.Errorf("--label %q: write it as KEY=VALUE", pair))
		case len(why) > 0:
			all = append(all, fmt.Errorf("--label %q is not a valid label: %s", pair, why[0]))
		default:
			labels[key] = value
		}
	}
	return labels, errors.Join(all...)
}

// scope returns the namespace to list, and a phrase that names it in a message.
func scope(c *cli.Context, hub *namespacedHub) (namespace, where string) {
	if c.Bool(flagAll) {
		return metav1.NamespaceAll, "in any namespace"
	}
	return hub.namespace, "in namespace " + hub.namespace + " (-A for all)"
}

// shorten cuts a text for a table.
func shorten(text string) string {
	const limit = 40
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	return string(runes[:limit-1]) + "…"
}

// PlainLog formats errors that the programs log as messages of a command line tool. Errors contain texts of objects, which tenants and agents
// write, so characters that a terminal interprets are replaced.
type PlainLog struct{}

// Format formats one message.
func (PlainLog) Format(entry *logrus.Entry) ([]byte, error) {
	lines := strings.Split("muster: "+strings.TrimRight(entry.Message, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(view.Visible(line), " ")
	}
	return []byte(strings.Join(lines, "\n") + "\n"), nil
}
