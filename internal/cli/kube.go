package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/urfave/cli/v2"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/muster-fleet/muster/internal/admin"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// hubUsage describes the connection flags that the help of each command lists. Only the help of the program lists the others.
var hubUsage = map[string]string{
	flagKubeconfig: "`FILE` with the kubeconfig of the hub; default: $KUBECONFIG, then ~/.kube/config",
	flagContext:    "`NAME` of the hub's context in its kubeconfig; default: the current context",
	flagNamespace:  "`NAMESPACE` of the objects; default: that of the context",
}

// joinUsage replaces hubUsage for muster join, which connects to the member and not to the hub.
var joinUsage = map[string]string{
	flagKubeconfig: "`FILE` with the kubeconfig of the member; default: $KUBECONFIG, then ~/.kube/config",
	flagContext:    "`NAME` of the member's context in its kubeconfig; default: the current context",
}

// helmFlags maps connection flags to their names in helm.
var helmFlags = map[string]string{
	flagKubeconfig: "kubeconfig", flagContext: "kube-context", "as": "kube-as-user", "as-group": "kube-as-group", "server": "kube-apiserver",
	"certificate-authority": "kube-ca-file", "tls-server-name": "kube-tls-server-name", "insecure-skip-tls-verify": "kube-insecure-skip-tls-verify",
}

// kubeConnection selects a cluster, with the flags of kubectl.
type kubeConnection struct {
	*genericclioptions.ConfigFlags
	flags *pflag.FlagSet
}

// newConnection returns a connection with the flags of kubectl, except --cluster and --token, which muster uses for other values, and --cache-dir.
func newConnection() kubeConnection {
	config := genericclioptions.NewConfigFlags(false)
	config.ClusterName, config.BearerToken, config.CacheDir = nil, nil, nil
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	return kubeConnection{config, flags}
}

// hubFlags returns the connection flags of a command.
func hubFlags() []cli.Flag { return kubeFlags(hubUsage, true) }

// kubeFlags returns the connection flags. The map shown replaces kubectl's usage texts; if hide is true, the help omits the flags that are not in it.
func kubeFlags(shown map[string]string, hide bool) (flags []cli.Flag) {
	newConnection().flags.VisitAll(func(f *pflag.Flag) {
		usage, ofCommands := shown[f.Name]
		if !ofCommands {
			usage = f.Usage
		}
		var aliases []string
		if f.Shorthand != "" {
			aliases = []string{f.Shorthand}
		}
		hidden := hide && !ofCommands
		switch f.Value.Type() {
		case "bool":
			flags = append(flags, &cli.BoolFlag{Name: f.Name, Aliases: aliases, Usage: usage, Hidden: hidden})
		case "stringArray":
			flags = append(flags, &cli.StringSliceFlag{Name: f.Name, Aliases: aliases, Usage: usage, Hidden: hidden})
		default:
			flags = append(flags, &cli.StringFlag{Name: f.Name, Aliases: aliases, Usage: usage, Hidden: hidden, Value: f.DefValue})
		}
	})
	return flags
}

// given returns a connection with the flags that are set before or after the command. If both are, the flag after the command counts. The
// library would return the default of the innermost command that has the flag.
func given(lineage []*cli.Context) (to kubeConnection, err error) {
	to = newConnection()
	to.flags.VisitAll(func(f *pflag.Flag) {
		for _, level := range lineage {
			if level == nil || level.Command == nil || !slices.Contains(level.LocalFlagNames(), f.Name) {
				continue
			}
			values := []string{fmt.Sprint(level.Value(f.Name))}
			if f.Value.Type() == "stringArray" {
				values = level.StringSlice(f.Name)
			}
			for _, value := range values {
				err = errors.Join(err, to.flags.Set(f.Name, value))
			}
			return
		}
	})
	return to, err
}

// command returns a command line of muster for the same cluster, quoted for a shell.
func (to kubeConnection) command(namespace string, words ...string) string {
	return to.program("muster", namespace, words...)
}

// registerAgain returns the command line that gives the agent of a cluster another credential, from a token made for this cluster alone.
func (to kubeConnection) registerAgain(namespace, cluster string) string {
	return to.command(namespace, "token", "create", "--cluster", cluster, "--usage-limit", "1", "--ttl", "1h", "-o", "values") +
		" | muster join - --kubeconfig MEMBER"
}

// program returns a command line of muster, kubectl or helm for the same cluster, quoted for a shell.
func (to kubeConnection) program(name, namespace string, words ...string) string {
	return shellWords(slices.Concat([]string{name}, to.flagsOf(name), []string{"-n", namespace}, words)...)
}

// flagsOf returns the connection flags without the namespace, under the names that a program has for them. Those of kubectl are the same as
// those of muster.
func (to kubeConnection) flagsOf(name string) (line []string) {
	to.flags.Visit(func(f *pflag.Flag) {
		flag, known := f.Name, f.Name != flagNamespace
		if name == "helm" {
			flag, known = helmFlags[f.Name]
		}
		switch list, isList := f.Value.(pflag.SliceValue); {
		case !known, f.Value.String() == "": // an empty string is the default
		case isList:
			for _, value := range list.GetSlice() {
				line = append(line, "--"+flag+"="+value)
			}
		default:
			line = append(line, "--"+flag+"="+f.Value.String())
		}
	})
	return line
}

// shellFlags returns the connection flags without the namespace, quoted for a shell, with a space before each.
func (to kubeConnection) shellFlags() (text string) {
	for _, flag := range to.flagsOf("muster") {
		text += " " + shellWords(flag)
	}
	return text
}

// shellWords quotes words for a shell.
func shellWords(words ...string) string {
	for i, word := range words {
		if word == "" || strings.ContainsAny(word, " \t\n'\"\\$`&|;<>()*?[]#~!{}") {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// namespacedHub is a connection to a hub, with the namespace of the objects that a command works on.
type namespacedHub struct {
	*admin.Hub
	kubeConnection
	namespace string
}

func connect(c *cli.Context) (*namespacedHub, error) {
	to, err := given(c.Lineage())
	if err != nil {
		return nil, err
	}
	return connectWith(to)
}

// connectWithName connects to the hub, and returns the only argument of the command, which is what the caller says, such as "the NAME of the token".
func connectWithName(c *cli.Context, what string) (hub *namespacedHub, name string, err error) {
	if name, err = oneArgument(c, what); err != nil {
		return nil, "", err
	}
	hub, err = connect(c)
	return hub, name, err
}

// connectWithCluster reads the Cluster that is the only argument of the command. It also connects to the member if the flags name its kubeconfig;
// otherwise member is nil.
func connectWithCluster(c *cli.Context) (hub *namespacedHub, cluster *fleet.Cluster, member kubernetes.Interface, err error) {
	name, err := oneArgument(c, "the name of the CLUSTER")
	if err != nil {
		return nil, nil, nil, err
	}
	if file := c.String(flagMemberKubeconfig); file != "" {
		if member, err = memberClient(file, c.String(flagMemberContext)); err != nil {
			return nil, nil, nil, err
		}
	}
	if hub, err = connect(c); err != nil {
		return nil, nil, nil, err
	}
	cluster, err = hub.GetCluster(c.Context, hub.namespace, name)
	return hub, cluster, member, err
}

func connectWith(to kubeConnection) (*namespacedHub, error) {
	config, namespace, err := hubConfig(to)
	if err != nil {
		return nil, err
	}
	hub, err := admin.Connect(config)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the hub: %w", err)
	}
	hub.Flags = to.shellFlags()
	return &namespacedHub{hub, to, namespace}, nil
}

func hubConfig(to kubeConnection) (config *rest.Config, namespace string, err error) {
	if config, namespace, err = load(to); err != nil {
		return nil, "", fmt.Errorf("cannot connect to the hub: pass --kubeconfig, or set KUBECONFIG: %w", err)
	}
	return config, namespace, nil
}

// memberFlags returns the flags for the kubeconfig of a member.
func memberFlags(what string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: flagMemberKubeconfig, Usage: "`FILE` with the kubeconfig of " + what},
		&cli.StringFlag{Name: flagMemberContext, Usage: "`NAME` of the context in that kubeconfig; default: its current context"},
	}
}

// loadMember reads the kubeconfig of a member; an empty context means the current one.
func loadMember(file, contextName string) (*rest.Config, error) {
	config, _, err := load(memberConnection(file, contextName))
	return config, err
}

func memberConnection(file, contextName string) kubeConnection {
	to := newConnection()
	for flag, value := range map[string]string{flagKubeconfig: file, flagContext: contextName} {
		if value != "" {
			_ = to.flags.Set(flag, value) // flags with a string accept every value
		}
	}
	return to
}

// memberClient returns a client for a member. It has the parameters of loadMember.
func memberClient(file, contextName string) (kubernetes.Interface, error) {
	config, err := loadMember(file, contextName)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flagMemberKubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flagMemberKubeconfig, err)
	}
	return client, nil
}

// load reads a kubeconfig. It sends no request.
func load(to kubeConnection) (config *rest.Config, namespace string, err error) {
	loader := to.ToRawKubeConfigLoader()
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, "", err
	}
	if config, err = to.ToRESTConfig(); err != nil {
		return nil, "", err
	}
	if len(raw.Clusters) == 0 && *to.APIServer == "" && config.Host == clientcmd.ClusterDefaults.Server {
		return nil, "", errors.New("no kubeconfig has been found") // the library would connect to localhost
	}
	if namespace, _, err = loader.Namespace(); err != nil {
		return nil, "", err
	}
	discardClientLog()
	config.WarningHandler, config.QPS = rest.NoWarnings{}, -1
	return config, namespace, nil
}

// discardClientLog discards the log of the Kubernetes client library, which also returns each failure as an error.
func discardClientLog() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}
