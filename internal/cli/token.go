package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
)

const (
	flagTTL   = "ttl"
	flagChart = "chart"
)

func tokenCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "token",
		Usage:       "create, list and revoke registration tokens",
		Subcommands: []*cli.Command{tokenCreate(s), tokenList(s), tokenRevoke(s)},
	}
}

func tokenCreate(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "create",
		Usage:     "create a registration token, and print what to run on the cluster",
		ArgsUsage: "NAME",
		Description: `Whoever has the token can register clusters in its namespace until it expires. It is printed only with -o values:

    muster -n fleet-default token create west --ttl 1h -o values > values.yaml

Every limit you set makes a stolen token worth less. A token with --cluster lets the agent of that cluster register again, for
instance after its credential was lost, even if another agent still holds that identity:

    muster -n fleet-default token create west-again --cluster west --usage-limit 1 --ttl 1h -o values > values.yaml`,
		Flags: append(append(hubFlags(), limitFlags()...),
			&cli.DurationFlag{Name: flagTTL, Value: 24 * time.Hour, Usage: "`DURATION` after which the token expires; 0: never"},
			&cli.StringFlag{Name: flagChart, Value: "charts/fleet-agent", Usage: "path or name of the `CHART` fleet-agent, for the helm command that is printed"},
			&cli.DurationFlag{Name: flagTimeout, Value: time.Minute, Usage: "maximum `DURATION` to wait for the hub"},
			outputFlag(formatValues, formatJSON, formatYAML),
		),
		Action: func(c *cli.Context) error { return createToken(c, s) },
	}
}

func createToken(c *cli.Context, s Streams) error {
	name, err := oneArgument(c, "the NAME of the token")
	if err != nil {
		return err
	}
	spec, err := tokenSpec(c)
	if err := errors.Join(checkName(name), err); err != nil {
		return err
	}
	hub, err := connect(c)
	if err != nil {
		return err
	}
	if err := forCluster(c.Context, hub, c.String(flagCluster), &spec); err != nil {
		return err
	}
	if err := hub.CreateToken(c.Context, hub.namespace, name, spec); err != nil {
		return err
	}
	return handOver(c, s, hub, name)
}

// handOver waits until the token can be used and prints what to do with it.
func handOver(c *cli.Context, s Streams, hub *connection, name string) error {
	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	token, err := hub.AwaitToken(ctx, hub.namespace, name)
	if err != nil {
		return err
	}
	if c.String(flagOutput) != formatValues {
		return showToken(c, s, view.OfToken(token))
	}
	values, err := hub.Values(ctx, token)
	if err != nil {
		return err
	}
	_, err = s.Out.Write(values)
	return err
}

func showToken(c *cli.Context, s Streams, token view.Token) error {
	if done, err := encode(s.Out, c.String(flagOutput), token); done {
		return err
	}
	instructions(s.Out, token, c.String(flagChart), s.Now())
	return nil
}

// instructions are the whole way from here to a registered cluster.
func instructions(w io.Writer, t view.Token, chart string, now time.Time) {
	fmt.Fprintf(w, `Token %[1]s/%[2]s is ready; it expires %[5]s.

1. On the hub, save its values. They hold a secret: whoever has it can register clusters.

     kubectl -n %[1]s get secret %[3]s -o jsonpath='{.data.values}' | base64 -d > values.yaml

2. On the cluster to register, install the agent with them:

     helm -n cattle-fleet-system install --create-namespace --wait --values values.yaml fleet-agent %[4]s

3. Watch it arrive:

     muster -n %[1]s clusters
`, t.Namespace, t.Name, t.Secret, chart, view.Until(t.Expires, now))
}

func tokenList(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the registration tokens",
		Flags: append(hubFlags(), allFlag(), outputFlag(formatWide, formatJSON, formatYAML)),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return listTokens(c, s)
		},
	}
}

func listTokens(c *cli.Context, s Streams) error {
	hub, err := connect(c)
	if err != nil {
		return err
	}
	namespace := hub.namespaceOf(c)
	list, err := hub.Fleet.ClusterRegistrationTokens(namespace).List(c.Context, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ClusterRegistrationTokens: %w", admin.Explain(err, namespace))
	}
	tokens := make([]view.Token, 0, len(list.Items))
	for i := range list.Items {
		tokens = append(tokens, view.OfToken(&list.Items[i]))
	}
	if done, err := encode(s.Out, c.String(flagOutput), tokens); done {
		return err
	}
	if len(tokens) == 0 {
		fmt.Fprintln(s.Err, "No registration tokens "+where(namespace)+".")
		return nil
	}
	tokenTable(s.Out, tokens, c.String(flagOutput) == formatWide, s.Now())
	return nil
}

func tokenTable(w io.Writer, tokens []view.Token, wide bool, now time.Time) {
	header := []string{"NAMESPACE", "NAME", "TTL", "EXPIRES", "USES", "SECRET", "STATE", "REASON"}
	if wide {
		header = append(header, "LAST USED", "LAST CLUSTER", "FOR", "MESSAGE")
	}
	rows := make([][]string, 0, len(tokens))
	for _, v := range tokens {
		row := []string{v.Namespace, v.Name, v.TTL, view.Until(v.Expires, now), v.UsesText(), v.Secret, v.State, v.Reason}
		if wide {
			row = append(row, view.Ago(v.LastUsed, now), v.LastCluster, identities(v), v.Message)
		}
		rows = append(rows, row)
	}
	view.Table(w, header, rows)
}

// identities are those a token registers, as far as they fit into a table.
func identities(t view.Token) string {
	all := slices.Clone(t.ClientIDs)
	if t.ClientIDPattern != "" {
		all = append(all, t.ClientIDPattern)
	}
	if len(all) == 0 {
		return "any"
	}
	return shortened(strings.Join(all, ","), mostOfAnIdentity)
}

func tokenRevoke(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "revoke",
		Usage:       "delete a registration token, so that nobody can register with it any more",
		ArgsUsage:   "NAME",
		Description: "Clusters that have registered with it stay registered: their agents have credentials of their own.",
		Flags:       hubFlags(),
		Action:      func(c *cli.Context) error { return revokeToken(c, s) },
	}
}

func revokeToken(c *cli.Context, s Streams) error {
	name, err := oneArgument(c, "the NAME of the token")
	if err != nil {
		return err
	}
	hub, err := connect(c)
	if err != nil {
		return err
	}
	err = hub.Fleet.ClusterRegistrationTokens(hub.namespace).Delete(c.Context, name, metav1.DeleteOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no ClusterRegistrationToken %s/%s: `muster token list -A` shows all there are", hub.namespace, name)
	case err != nil:
		return fmt.Errorf("delete ClusterRegistrationToken %s/%s: %w", hub.namespace, name, err)
	}
	fmt.Fprintf(s.Out, "Token %s/%s is revoked. Clusters that registered with it stay registered.\n", hub.namespace, name)
	return nil
}
