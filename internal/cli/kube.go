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
)

// hubUsage describes the flags of a connection that each command has in its help. The help of the program has the others too.
var hubUsage = map[string]string{
	flagKubeconfig: "`FILE` with the kubeconfig of the hub; default: $KUBECONFIG, then ~/.kube/config",
	flagContext:    "`NAME` of the hub's context in its kubeconfig; default: the current context",
	flagNamespace:  "`NAMESPACE` of the objects; default: that of the context",
}

// joinUsage describes the flags of a connection for muster join, which connects to the member and not to the hub.
var joinUsage = map[string]string{
	flagKubeconfig: "`FILE` with the kubeconfig of the member; default: $KUBECONFIG, then ~/.kube/config",
	flagContext:    "`NAME` of the member's context in its kubeconfig; default: the current context",
}

// helmFlags are the names that helm has for flags of a connection.
var helmFlags = map[string]string{
	flagKubeconfig: "kubeconfig", flagContext: "kube-context", "as": "kube-as-user", "as-group": "kube-as-group", "server": "kube-apiserver",
	"certificate-authority": "kube-ca-file", "tls-server-name": "kube-tls-server-name", "insecure-skip-tls-verify": "kube-insecure-skip-tls-verify",
}

// kubeConnection is how a person reaches a cluster: the flags of kubectl.
type kubeConnection struct {
	*genericclioptions.ConfigFlags
	flags *pflag.FlagSet
}

// newConnection has the flags of kubectl but those that other flags of muster have the names of.
func newConnection() kubeConnection {
	config := genericclioptions.NewConfigFlags(false)
	config.ClusterName, config.BearerToken, config.CacheDir = nil, nil, nil
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	return kubeConnection{config, flags}
}

// hubFlags are the flags of kubectl for a connection. What is not specific to muster is in the help of the program only.
func hubFlags() []cli.Flag { return kubeFlags(hubUsage, true) }

// kubeFlags are the flags of kubectl for a connection, with the usage of those that a command shows in its help.
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

// given are the flags of a connection that are set before or after the command. The one that is given last counts. The library itself
// returns the default of the innermost command that has the flag.
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

// command is a command of muster for the same cluster, as a shell needs it.
func (to kubeConnection) command(namespace string, words ...string) string {
	return to.program("muster", namespace, words...)
}

// program is a command of muster, of kubectl, which has the same flags, or of helm for the same cluster.
func (to kubeConnection) program(name, namespace string, words ...string) string {
	return shellWords(slices.Concat([]string{name}, to.flagsOf(name), []string{"-n", namespace}, words)...)
}

// flagsOf are the flags of the connection as a program needs them, without the namespace.
func (to kubeConnection) flagsOf(name string) (line []string) {
	to.flags.Visit(func(f *pflag.Flag) {
		flag, known := f.Name, f.Name != flagNamespace
		if name == "helm" {
			flag, known = helmFlags[f.Name]
		}
		switch list, isList := f.Value.(pflag.SliceValue); {
		case !known, f.Value.String() == "": // an empty value is the default
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

// shellFlags are the flags of the connection as a shell needs them, without the namespace, each with a space before it.
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

// namespacedHub is a hub with the namespace of the objects.
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

// memberFlags are the flags for the kubeconfig of a member.
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
			_ = to.flags.Set(flag, value) // a text is always valid
		}
	}
	return to
}

// memberClient is a client for the member that memberFlags name.
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
		return nil, "", errors.New("no kubeconfig has been found") // the library takes an address on this machine then
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
