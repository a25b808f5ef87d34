package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
)

const (
	flagMemberContext = "member-context"
	flagWait          = "wait"
)

func importCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "give the hub a cluster's kubeconfig; the hub installs the agent there",
		ArgsUsage: "NAME --kubeconfig FILE",
		Description: `--kubeconfig after the command is the kubeconfig of the cluster to import. That of the hub has to be given before the
command, or in $KUBECONFIG:

    muster --kubeconfig hub.yaml -n fleet-default import east --kubeconfig east.yaml --wait

It creates the Secret NAME-kubeconfig and the Cluster NAME. The Secret contains only the current context, with the content of
the files that it refers to.`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: flagKubeconfig, Usage: "`FILE` with the kubeconfig of the cluster to import (required)"},
			&cli.StringFlag{Name: flagMemberContext, Usage: "`NAME` of the context to use from that file; default: the current context"},
			&cli.StringSliceFlag{Name: flagLabel, Usage: "`KEY=VALUE` label for the Cluster; may be repeated"},
			&cli.BoolFlag{Name: flagWait, Usage: "wait until the cluster is registered, and print its states"},
			timeoutFlag("of --wait", 5*time.Minute),
		}, hubFlagsWithoutKubeconfig()...),
		Action: func(c *cli.Context) error { return importCluster(c, s) },
	}
}

func importCluster(c *cli.Context, s Streams) error {
	name, err := oneArgument(c, "the NAME of the cluster")
	if err != nil {
		return err
	}
	if c.String(flagKubeconfig) == "" {
		return errors.New("no cluster to import: pass its kubeconfig after the command: muster import NAME --kubeconfig FILE")
	}
	labels, errLabels := parseLabels(c.StringSlice(flagLabel))
	kubeconfig, errKubeconfig := selfContained(c.String(flagKubeconfig), c.String(flagMemberContext))
	if err := errors.Join(checkName(name), errLabels, errKubeconfig); err != nil {
		return err
	}

	hub, err := connectWith(c, valueOf(c.Lineage()[1:], flagKubeconfig)) // the --kubeconfig of the command itself is that of the member
	if err != nil {
		return err
	}
	order := admin.Import{Namespace: hub.namespace, Name: name, Kubeconfig: kubeconfig, Labels: labels}
	if err := hub.Import(c.Context, order); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "Cluster %s/%s created, with Secret %s.\n", order.Namespace, name, order.SecretName())
	if !c.Bool(flagWait) {
		fmt.Fprintf(s.Out, "The hub now installs the agent. To see the state: muster -n %s clusters -o wide\n", order.Namespace)
		return nil
	}

	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	began := s.Now()
	_, err = hub.AwaitRegistered(ctx, order.Namespace, name, func(v view.Cluster) {
		fmt.Fprintln(s.Err, progressLine(v, s.Now().Sub(began)))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "Cluster %s/%s is registered.\n", order.Namespace, name)
	return nil
}

func progressLine(v view.Cluster, after time.Duration) string {
	line := fmt.Sprintf("%6.1f s  %s", after.Seconds(), v.State)
	if v.Reason != "" && v.Reason != v.State {
		line += " (" + v.Reason + ")"
	}
	if v.Message != "" {
		line += ": " + v.Message
	}
	return line
}

// selfContained is one context of a kubeconfig in a form that works on another machine: without references to files and programs.
func selfContained(file, context string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of the cluster to import: %w", err)
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s is not a kubeconfig: %s. Pass the kubeconfig of the cluster to import; "+
			"`kubectl config view --raw --minify --flatten` prints that of the current context", file, notKubeconfig(data))
	}
	if context != "" {
		config.CurrentContext = context
	}
	if err := checkContext(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: a file that it refers to: %w", file, err)
	}
	for _, user := range config.AuthInfos { // FlattenConfig does not read token files
		if user.TokenFile == "" {
			continue
		}
		token, err := os.ReadFile(user.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: its token file: %w", file, err)
		}
		user.Token, user.TokenFile = strings.TrimSpace(string(token)), ""
	}
	return clientcmd.Write(*config)
}

// notKubeconfig says why clientcmd cannot read a file. The error of clientcmd describes Go types, and may quote the file, which can
// contain credentials.
func notKubeconfig(data []byte) string {
	var object map[string]any
	if yaml.Unmarshal(data, &object) != nil {
		return "it contains no YAML or JSON object"
	}
	if kind, found := object["kind"]; found && kind != "Config" {
		return fmt.Sprintf("its kind is %q, not \"Config\"", fmt.Sprint(kind))
	}
	return "its fields are not those of a kubeconfig"
}

func checkContext(config *clientcmdapi.Config) error {
	contexts := "none"
	if len(config.Contexts) > 0 {
		contexts = strings.Join(slices.Sorted(maps.Keys(config.Contexts)), ", ")
	}
	current := config.Contexts[config.CurrentContext]
	switch {
	case config.CurrentContext == "":
		return fmt.Errorf("it has no current context: name one with --%s (its contexts: %s)", flagMemberContext, contexts)
	case current == nil:
		return fmt.Errorf("it has no context %q (its contexts: %s)", config.CurrentContext, contexts)
	case config.Clusters[current.Cluster] == nil:
		return fmt.Errorf("context %q names cluster %q, which it does not contain", config.CurrentContext, current.Cluster)
	}
	user := config.AuthInfos[current.AuthInfo]
	switch {
	case user == nil:
		return fmt.Errorf("context %q names user %q, which it does not contain", config.CurrentContext, current.AuthInfo)
	case user.Exec != nil || user.AuthProvider != nil:
		return fmt.Errorf("user %q authenticates with a program or plugin, which the hub does not have: "+
			"create a kubeconfig with the token of a ServiceAccount", current.AuthInfo)
	}
	return nil
}
