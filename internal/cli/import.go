package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
)

const (
	flagMemberContext = "member-context"
	flagLabel         = "label"
	flagWait          = "wait"
	flagTimeout       = "timeout"
)

func importCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "give the hub a cluster's kubeconfig; the hub installs the agent there",
		ArgsUsage: "NAME --kubeconfig FILE",
		Description: `--kubeconfig after the command is the kubeconfig of the cluster to import; that of the hub goes before the
command, or in $KUBECONFIG:

    muster --kubeconfig hub.yaml -n fleet-default import east --kubeconfig east.yaml --wait

It creates the Secret NAME-kubeconfig and the Cluster NAME. Only the current context goes into the Secret,
together with the files it refers to.`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: flagKubeconfig, Usage: "`FILE` with the kubeconfig of the cluster to import (required)"},
			&cli.StringFlag{Name: flagMemberContext, Usage: "`NAME` of the context to use from that file; default: the current one"},
			&cli.StringSliceFlag{Name: flagLabel, Usage: "`KEY=VALUE` label for the Cluster; may be repeated"},
			&cli.BoolFlag{Name: flagWait, Usage: "wait until the cluster is registered, and show the progress"},
			&cli.DurationFlag{Name: flagTimeout, Value: 5 * time.Minute, Usage: "maximum `DURATION` of --wait"},
		}, hubFlagsBesideKubeconfig()...),
		Action: func(c *cli.Context) error { return importCluster(c, s) },
	}
}

func importCluster(c *cli.Context, s Streams) error {
	order, err := importOrder(c)
	if err != nil {
		return err
	}
	// The innermost --kubeconfig is the member's.
	hub, err := connectBy(c, givenIn(c.Lineage()[1:], flagKubeconfig))
	if err != nil {
		return err
	}
	order.Namespace = hub.namespace
	if err := hub.Import(c.Context, order); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "Cluster %s/%s created, with Secret %s.\n", order.Namespace, order.Name, order.SecretName())
	if !c.Bool(flagWait) {
		fmt.Fprintf(s.Out, "The hub now installs the agent. How it stands: muster -n %s clusters -o wide\n", order.Namespace)
		return nil
	}
	return followCluster(c, s, hub, order)
}

// importOrder is what the command line asks for, the namespace left out.
func importOrder(c *cli.Context) (admin.Import, error) {
	name, err := oneArgument(c, "the NAME of the cluster")
	if err != nil {
		return admin.Import{}, err
	}
	if c.String(flagKubeconfig) == "" {
		return admin.Import{}, errors.New("which cluster? Pass its kubeconfig after the command: muster import NAME --kubeconfig FILE")
	}
	labels, errLabels := parseLabels(c.StringSlice(flagLabel))
	kubeconfig, errKubeconfig := selfContained(c.String(flagKubeconfig), c.String(flagMemberContext))
	if err := errors.Join(checkName(name), errLabels, errKubeconfig); err != nil {
		return admin.Import{}, err
	}
	return admin.Import{Name: name, Kubeconfig: kubeconfig, Labels: labels}, nil
}

func checkName(name string) error {
	if why := validation.IsDNS1123Subdomain(name); len(why) > 0 {
		return fmt.Errorf("%q is no name for an object: %s", name, why[0])
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
			all = append(all, fmt.Errorf("--label %q is no label: %s", pair, why[0]))
		default:
			labels[key] = value
		}
	}
	return labels, errors.Join(all...)
}

func followCluster(c *cli.Context, s Streams, hub *connection, order admin.Import) error {
	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	begun := s.Now()
	_, err := hub.AwaitRegistered(ctx, order.Namespace, order.Name, func(v view.Cluster) {
		fmt.Fprintln(s.Err, progressLine(v, s.Now().Sub(begun)))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "Cluster %s/%s is registered.\n", order.Namespace, order.Name)
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
