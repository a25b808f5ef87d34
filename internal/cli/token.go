package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	names "github.com/rancher/wrangler/v3/pkg/name"
	"github.com/urfave/cli/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/version"
)

const (
	flagTTL             = "ttl"
	flagChart           = "chart"
	flagUsageLimit      = "usage-limit"
	flagClientID        = "client-id"
	flagClientIDPattern = "client-id-pattern"
	flagApproval        = "approval"
	flagCluster         = "cluster"
	flagAllowLabel      = "allow-label"
	flagLongLived       = "long-lived-credentials"
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
		ArgsUsage: "[NAME]",
		Description: `With the token, clusters can be registered in its namespace until it expires. The secret is printed only with -o values:

    muster -n fleet-default token create west --ttl 1h -o values > values.yaml

Each limit reduces the damage if the token is stolen. A token with --cluster lets the agent of that cluster register again, for
example after its credential was lost, even if another agent still has that identity. Without NAME, such a token gets a name of its own:

    muster -n fleet-default token create --cluster west --usage-limit 1 --ttl 1h -o values > values.yaml

With -o clusternet it prints the Secret that an agent of Clusternet reads when it starts, if the hub serves such agents:

    muster -n fleet-default token create west -o clusternet | kubectl --context west apply -f -`,
		Flags: append(hubFlags(),
			&cli.IntFlag{Name: flagUsageLimit, Usage: "maximum `NUMBER` of requests, including those of agents that register again", DefaultText: "no limit"},
			&cli.StringSliceFlag{Name: flagClientID, Usage: "`ID` of a cluster that it can register; may be repeated; default: any"},
			&cli.StringFlag{Name: flagClientIDPattern, Usage: "`PATTERN` of the IDs that it can register, such as 'edge-*'"},
			&cli.StringFlag{Name: flagCluster, Usage: "`NAME` of an existing cluster, the only one whose agent can register with the token"},
			&cli.StringSliceFlag{Name: flagLabel, Usage: "`KEY=VALUE` label for each cluster it registers; may be repeated"},
			&cli.StringSliceFlag{Name: flagAllowLabel, Usage: "`KEY` of a label that agents may choose for their clusters; may be repeated; default: none"},
			&cli.StringFlag{Name: flagApproval, Usage: "`MODE` of approval for its requests: Auto or Manual; default: the setting of the hub"},
			&cli.StringFlag{Name: flagLongLived, Usage: "`MODE` for agents that do not renew their credential: Allow or Refuse; default: the setting of the hub"},
			&cli.DurationFlag{Name: flagTTL, Value: 24 * time.Hour, Usage: "`DURATION` after which the token expires; 0: never"},
			&cli.StringFlag{Name: flagChart, Value: "charts/fleet-agent", Usage: "path or name of the `CHART` fleet-agent, for the helm command that is printed"},
			timeoutFlag("to wait for the hub", time.Minute),
			outputFlag(formatValues, formatClusternet),
		),
		Action: func(c *cli.Context) error { return createToken(c, s) },
	}
}

func createToken(c *cli.Context, s Streams) error {
	name, err := tokenName(c)
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
	if cluster := c.String(flagCluster); cluster != "" {
		clientID, err := hub.ClientID(c.Context, hub.namespace, cluster)
		if err != nil {
			return err
		}
		spec.ClientIDs = []string{clientID}
	}
	format := c.String(flagOutput)
	if format == formatClusternet {
		if err := hub.RequireClusternet(); err != nil {
			return err
		}
	}
	if err := hub.CreateToken(c.Context, hub.namespace, name, spec); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	token, err := hub.AwaitToken(ctx, hub.namespace, name)
	if err != nil {
		return err
	}
	summary := view.OfToken(token)
	switch format {
	case formatValues, formatClusternet:
		values, err := hub.Values(ctx, token)
		if err != nil {
			return err
		}
		if format == formatClusternet {
			return printClusternetSecret(s.Out, summary, values, s.Now())
		}
		_, err = s.Out.Write(values)
		return err
	}
	if done, err := printObject(c, s.Out, "ClusterRegistrationToken", summary.Namespace, summary.Name, summary); done {
		return err
	}
	printInstructions(s.Out, hub.kubeConnection, summary, c.String(flagChart), version.Version, s.Now())
	return nil
}

// tokenName returns the argument. A token for a single cluster can do without: each gets another name, because the commands that repair a
// registration create one, and that of an earlier repair remains until it expires.
func tokenName(c *cli.Context) (string, error) {
	if cluster := c.String(flagCluster); cluster != "" && c.Args().Len() == 0 {
		return names.SafeConcatName(cluster, "again", rand.String(5)), nil
	}
	return oneArgument(c, "the NAME of the token")
}

// tokenSpec returns the spec that the flags describe, without --cluster.
func tokenSpec(c *cli.Context) (spec fleet.ClusterRegistrationTokenSpec, err error) {
	spec = fleet.ClusterRegistrationTokenSpec{
		TTL: admin.TTL(c.Duration(flagTTL)), ClientIDs: c.StringSlice(flagClientID), ClientIDPattern: c.String(flagClientIDPattern),
		Approval: fleet.Approval(c.String(flagApproval)), LongLivedCredentials: fleet.LongLived(c.String(flagLongLived)),
		// An absent list would leave the labels to the configuration of the hub.
		AllowedLabelKeys: new(append([]string{}, c.StringSlice(flagAllowLabel)...)),
	}
	var problems []error
	if c.Duration(flagTTL) < 0 {
		problems = append(problems, fmt.Errorf("--ttl is %s: it must not be negative", c.Duration(flagTTL)))
	}
	labels, err := parseLabels(c.StringSlice(flagLabel))
	problems = append(problems, err)
	if len(labels) > 0 {
		spec.Labels = labels
	}
	if limit := c.Int(flagUsageLimit); c.IsSet(flagUsageLimit) {
		if limit < 1 || limit > math.MaxInt32 {
			problems = append(problems, fmt.Errorf("--usage-limit is %d: it must be between 1 and %d", limit, math.MaxInt32))
		}
		number := int32(limit) //nolint:gosec // checked above
		spec.UsageLimit = &number
	}
	switch spec.Approval {
	case "", fleet.ApprovalAuto, fleet.ApprovalManual:
	default:
		problems = append(problems, fmt.Errorf("--approval is %q: it must be %s or %s", spec.Approval, fleet.ApprovalAuto, fleet.ApprovalManual))
	}
	switch spec.LongLivedCredentials {
	case "", fleet.LongLivedAllow, fleet.LongLivedRefuse:
	default:
		problems = append(problems, fmt.Errorf("--long-lived-credentials is %q: it must be %s or %s",
			spec.LongLivedCredentials, fleet.LongLivedAllow, fleet.LongLivedRefuse))
	}
	if _, err := path.Match(spec.ClientIDPattern, ""); err != nil {
		problems = append(problems, fmt.Errorf("--client-id-pattern %q: %w", spec.ClientIDPattern, err))
	}
	if c.String(flagCluster) != "" && (c.IsSet(flagClientID) || c.IsSet(flagClientIDPattern)) {
		problems = append(problems, errors.New("--cluster determines which ID the token can register: omit --client-id and --client-id-pattern"))
	}
	return spec, errors.Join(problems...)
}

// printInstructions prints all steps from the token to the registered cluster.
func printInstructions(w io.Writer, hub kubeConnection, t view.Token, chart, release string, now time.Time) {
	install := []string{"helm", "-n", registration.DefaultSystemNamespace, "install", "--create-namespace", "--wait", "--values", "values.yaml", "fleet-agent", chart}
	// Builds between releases have no published chart of their version.
	if strings.HasPrefix(chart, "oci://") && strings.HasPrefix(release, "v") && !strings.Contains(release, "-") {
		install = append(install, "--version", strings.TrimPrefix(release, "v"))
	}
	fmt.Fprintf(w, `Token %[1]s/%[2]s is ready; it expires %[5]s.

1. On the hub, save its values in a file that nobody else can read. They contain a secret with which clusters can be registered.

     umask 077
     %[3]s | base64 -d > values.yaml

2. On the cluster to register, install the agent with them:

     %[4]s

3. On the hub, check that the cluster is registered:

     %[6]s
`, t.Namespace, t.Name, hub.program("kubectl", t.Namespace, "get", "secret", t.Secret, "-o", "jsonpath={.data.values}"),
		shellWords(install...), view.Until(t.Expires, now), hub.command(t.Namespace, "clusters"))
}

// printClusternetSecret prints the Secret that a Clusternet agent reads when it starts, for kubectl apply.
func printClusternetSecret(w io.Writer, t view.Token, values []byte, now time.Time) error {
	v, err := registration.DecodeValues(values)
	if err != nil {
		return fmt.Errorf("Secret %s/%s of the token: %w", t.Namespace, t.Secret, err)
	}
	_, err = fmt.Fprintf(w, `# Token %[1]s/%[2]s; it expires %[3]s. This is a secret with which clusters can be registered.
# Apply it on the cluster to register, in the namespace of its Clusternet agent, and restart the agent, which reads it only then:
#
#     kubectl apply -f FILE
#     kubectl -n clusternet-system rollout restart deployment
#
# For an agent without this Secret, they are the arguments --cluster-reg-parent-url and --cluster-reg-token.
apiVersion: v1
kind: Secret
metadata:
  name: clusternet-agent-cluster-registration
  namespace: clusternet-system
type: Opaque
stringData:
  parentURL: %[4]q
  regToken: %[5]q
`, t.Namespace, t.Name, view.Until(t.Expires, now), v.APIServerURL, v.Token)
	return err
}

func tokenList(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the registration tokens",
		Flags: listFlags(),
		Action: list(s, "ClusterRegistrationTokens", "No registration tokens", func(c *cli.Context, hub *namespacedHub, namespace string) ([]view.Token, error) {
			return admin.Collect(c.Context, hub.Fleet.ClusterRegistrationTokens(namespace).List, func(t *fleet.ClusterRegistrationToken) (view.Token, bool) {
				return view.OfToken(t), true
			})
		}, tokenColumns),
	}
}

var tokenColumns = columns[view.Token]{
	kind:       "ClusterRegistrationToken",
	name:       func(v view.Token) (string, string) { return v.Namespace, v.Name },
	header:     []string{"NAMESPACE", "NAME", "TTL", "EXPIRES", "USES", "SECRET", "STATE", "REASON"},
	wideHeader: []string{"LAST-USED", "LAST-CLUSTER", "FOR", "MESSAGE"},
	row: func(v view.Token, now time.Time) []string {
		return []string{v.Namespace, v.Name, v.TTL, view.Until(v.Expires, now), v.UsesText(), v.Secret, v.State, v.Reason}
	},
	wideRow: func(v view.Token, now time.Time) []string {
		identities := slices.Clone(v.ClientIDs)
		if v.ClientIDPattern != "" {
			identities = append(identities, v.ClientIDPattern)
		}
		if len(identities) == 0 {
			identities = []string{"any"}
		}
		return []string{view.Ago(v.LastUsed, now), v.LastCluster, shorten(strings.Join(identities, ",")), v.Message}
	},
}

func tokenRevoke(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "revoke",
		Usage:       "delete a registration token, so that it can no longer be used to register",
		ArgsUsage:   "NAME",
		Description: "Clusters that have registered with it stay registered: their agents have credentials of their own.",
		Flags:       hubFlags(),
		Action: func(c *cli.Context) error {
			hub, name, err := connectWithName(c, "the NAME of the token")
			if err != nil {
				return err
			}
			err = hub.Fleet.ClusterRegistrationTokens(hub.namespace).Delete(c.Context, name, metav1.DeleteOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return fmt.Errorf("there is no ClusterRegistrationToken %s/%s: `muster%s token list -A` lists all tokens", hub.namespace, name, hub.Flags)
			case err != nil:
				return fmt.Errorf("delete ClusterRegistrationToken %s/%s: %w", hub.namespace, name, err)
			}
			fmt.Fprintf(s.Out, "Token %s/%s is revoked. Clusters that registered with it stay registered.\n", hub.namespace, name)
			return nil
		},
	}
}
