// Package cli is the command line of muster, the tool of a person who operates a hub.
package cli

import (
	"encoding/json"
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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/demo"
	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/crds"
)

// Streams are what a command uses of its surroundings. Results are written to Out and progress to Err, so that a pipe receives
// results only.
type Streams struct {
	Out, Err io.Writer
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

// App is the program. Its arguments have to pass through FlagsFirst.
func App(s Streams) *cli.App {
	app := launch.App("muster", "register Kubernetes clusters with a hub")
	app.Description = `The hub is the cluster of the current context in $KUBECONFIG or ~/.kube/config, as for kubectl, unless
--kubeconfig and --context name another. These flags and --namespace can be given before or after the command.
Installed in $PATH as kubectl-muster, it is a plugin: kubectl muster clusters -A.`
	app.Writer = s.Out
	app.Flags = hubFlags()
	app.Commands = []*cli.Command{
		checkCommand(s), clustersCommand(s), describeCommand(s), importCommand(s), tokenCommand(s), requestsCommand(s), approveCommand(s), denyCommand(s),
		quarantineCommand(s), releaseCommand(s), rotateCommand(s), revokeCommand(s), removeCommand(s), reportCommand(s), uiCommand(s),
		versionCommand(s), crdsCommand(s), demoCommand(s), helloCommand(s),
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
		return fmt.Errorf("there is no command %q; see --help", c.Args().First())
	}
}

func crdsCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "crds",
		Usage:       "print the CustomResourceDefinitions as YAML",
		Description: "muster crds | kubectl apply --server-side -f -",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "clusternet", Usage: "print those that a hub installs which serves Clusternet's agents, instead of those of every hub"},
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
		Usage: "start a hub and two members on this machine, and register clusters in all three ways",
		Description: `The demo needs no root, no container engine and no registry. On a terminal it keeps running until Ctrl-C. Otherwise,
or with DEMO_EXIT=1, it checks the result, stops everything and exits. In a clone, scripts/demo builds what it needs and runs it.`,
		Action: withoutArguments(func(c *cli.Context) error {
			discardClientLog()
			return demo.Run(c.Context, demo.Options{
				Out:      s.Out,
				Terminal: s.Terminal && s.Env("TERM") != "dumb" && s.Env("NO_COLOR") == "",
				Stay:     s.Terminal && s.Env("DEMO_EXIT") == "",
			})
		}),
	}
}

// helloCommand is the long-running program of the workload that the demo deploys.
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

func hubFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: flagKubeconfig, Usage: "`FILE` with the kubeconfig of the hub; default: $KUBECONFIG, then ~/.kube/config"},
	}, hubFlagsWithoutKubeconfig()...)
}

// hubFlagsWithoutKubeconfig are for a command whose --kubeconfig is that of another cluster.
func hubFlagsWithoutKubeconfig() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: flagContext, Usage: "`NAME` of the hub's context in its kubeconfig; default: the current context"},
		&cli.StringFlag{Name: flagNamespace, Aliases: []string{"n"}, Usage: "`NAMESPACE` of the objects; default: that of the context"},
	}
}

func timeoutFlag(what string, value time.Duration) cli.Flag {
	return &cli.DurationFlag{Name: flagTimeout, Value: value, Usage: "maximum `DURATION` " + what}
}

// valueOf is the value of a flag that can be given before or after the command. The one that is given last counts. The library itself
// returns the default of the innermost command that has the flag.
func valueOf(lineage []*cli.Context, name string) string {
	for _, level := range lineage {
		if level != nil && level.Command != nil && slices.Contains(level.LocalFlagNames(), name) {
			return level.String(name)
		}
	}
	return ""
}

// namespacedHub is a hub with the namespace of the objects.
type namespacedHub struct {
	*admin.Hub
	namespace string
}

func connect(c *cli.Context) (*namespacedHub, error) {
	return connectWith(c, valueOf(c.Lineage(), flagKubeconfig))
}

func connectWith(c *cli.Context, kubeconfig string) (*namespacedHub, error) {
	config, namespace, err := loadKubeconfig(kubeconfig, valueOf(c.Lineage(), flagContext), valueOf(c.Lineage(), flagNamespace))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the hub: pass --kubeconfig, or set KUBECONFIG: %w", err)
	}
	hub, err := admin.Connect(config)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the hub: %w", err)
	}
	return &namespacedHub{Hub: hub, namespace: namespace}, nil
}

// loadKubeconfig reads a kubeconfig; an empty file, context or namespace means the default of kubectl. It sends no request.
func loadKubeconfig(file, contextName, namespace string) (config *rest.Config, defaultNamespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	overrides := &clientcmd.ConfigOverrides{CurrentContext: contextName}
	overrides.Context.Namespace = namespace
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	if config, err = loader.ClientConfig(); err != nil {
		return nil, "", err
	}
	if defaultNamespace, _, err = loader.Namespace(); err != nil {
		return nil, "", err
	}
	discardClientLog()
	config.WarningHandler, config.QPS = rest.NoWarnings{}, -1
	return config, defaultNamespace, nil
}

// discardClientLog discards the log of the Kubernetes client library, which also returns each failure as an error.
func discardClientLog() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}

// withoutArguments returns an error for arguments, which the command would ignore.
func withoutArguments(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.Args().Present() {
			return fmt.Errorf("%s takes no argument %q; see --help", c.Command.HelpName, c.Args().First())
		}
		return action(c)
	}
}

// oneArgument is the only argument of a command.
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

// Output formats; without one, the output is text for a person.
const (
	formatWide       = "wide"
	formatJSON       = "json"
	formatYAML       = "yaml"
	formatValues     = "values"
	formatClusternet = "clusternet"
)

func outputFlag(formats ...string) cli.Flag {
	return &cli.StringFlag{
		Name: flagOutput, Aliases: []string{"o"},
		Usage: "`FORMAT` of the output: " + strings.Join(formats, ", ") + "; default: human-readable text",
		Action: func(_ *cli.Context, value string) error {
			if value == "" || slices.Contains(formats, value) {
				return nil
			}
			return fmt.Errorf("--output is %q: it must be one of %s", value, strings.Join(formats, ", "))
		},
	}
}

// encode writes JSON or YAML. It returns false for the other formats.
func encode(w io.Writer, format string, value any) (done bool, err error) {
	var data []byte
	switch format {
	case formatJSON:
		data, err = json.MarshalIndent(value, "", "  ")
		data = append(data, '\n')
	case formatYAML:
		data, err = yaml.Marshal(value)
	default:
		return false, nil
	}
	if err != nil {
		return true, err
	}
	_, err = w.Write(data)
	return true, err
}

// columns is a table for a person; wide has additional columns.
type columns[T any] struct {
	header, wideHeader []string
	row, wideRow       func(item T, now time.Time) []string
}

func (t columns[T]) write(w io.Writer, items []T, wide bool, now time.Time) error {
	return view.Table(w, t.head(wide), t.rows(items, wide, now))
}

func (t columns[T]) head(wide bool) []string {
	if wide {
		return slices.Concat(t.header, t.wideHeader)
	}
	return t.header
}

func (t columns[T]) rows(items []T, wide bool, now time.Time) (rows [][]string) {
	for _, item := range items {
		row := t.row(item, now)
		if wide {
			row = append(row, t.wideRow(item, now)...)
		}
		rows = append(rows, row)
	}
	return rows
}

func listFlags(more ...cli.Flag) []cli.Flag {
	return slices.Concat(hubFlags(), []cli.Flag{
		&cli.BoolFlag{Name: flagAll, Aliases: []string{"A"}, Usage: "list across all namespaces"},
		outputFlag(formatWide, formatJSON, formatYAML),
	}, more)
}

// list is the action of a command that lists objects. fetch returns their summaries.
func list[T any](s Streams, kind, none string, fetch func(c *cli.Context, hub *namespacedHub, namespace string) ([]T, error), table columns[T]) cli.ActionFunc {
	return withoutArguments(func(c *cli.Context) error {
		hub, err := connect(c)
		if err != nil {
			return err
		}
		namespace, where := scope(c, hub)
		items, err := fetch(c, hub, namespace)
		if err != nil {
			return fmt.Errorf("list %s: %w", kind, admin.Explain(err, namespace))
		}
		if done, err := encode(s.Out, c.String(flagOutput), items); done {
			return err
		}
		if len(items) == 0 {
			fmt.Fprintln(s.Err, none+" "+where+".")
			return nil
		}
		return table.write(s.Out, items, c.String(flagOutput) == formatWide, s.Now())
	})
}

// scope is the namespace to list, and its name in a sentence.
func scope(c *cli.Context, hub *namespacedHub) (namespace, where string) {
	if c.Bool(flagAll) {
		return metav1.NamespaceAll, "in any namespace"
	}
	return hub.namespace, "in namespace " + hub.namespace + " (-A for all)"
}

// summaries applies summarize to all objects. It returns an empty list and not nil, for JSON.
func summaries[O, T any](objects []O, summarize func(*O) T) []T {
	all := make([]T, 0, len(objects))
	for i := range objects {
		all = append(all, summarize(&objects[i]))
	}
	return all
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

// PlainLog formats errors that the programs log as messages of a command line tool.
type PlainLog struct{}

// Format formats one message.
func (PlainLog) Format(entry *logrus.Entry) ([]byte, error) {
	return []byte("muster: " + strings.TrimRight(entry.Message, "\n") + "\n"), nil
}
