package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/view"
)

func clustersCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "clusters",
		Usage: "list the clusters, with how each was registered and its state",
		Flags: listFlags(),
		Action: list(s, "Clusters", "No clusters", func(c *cli.Context, hub *namespacedHub, namespace string) ([]view.Cluster, error) {
			clusters, err := hub.Fleet.Clusters(namespace).List(c.Context, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			return summaries(clusters.Items, view.OfCluster), nil
		}, clusterColumns),
	}
}

var clusterColumns = columns[view.Cluster]{
	header:     []string{"NAMESPACE", "NAME", "WAY IN", "STATE", "REASON", "BUNDLES", "LAST SEEN"},
	wideHeader: []string{"KUBERNETES", "AGENT", "MESSAGE"},
	row: func(v view.Cluster, now time.Time) []string {
		return []string{v.Namespace, v.Name, v.WayIn, v.State, v.Reason, v.Bundles, view.Ago(v.LastSeen, now)}
	},
	wideRow: func(v view.Cluster, _ time.Time) []string { return []string{v.Kubernetes, v.Agent, v.Message} },
}

func quarantineCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "quarantine",
		Usage:     "remove the rights of a cluster's agent on the hub, immediately and until the cluster is released",
		ArgsUsage: "CLUSTER",
		Description: `The agent keeps its identity but loses all of its rights. The hub sends nothing to the cluster, and nobody can register for
it. What already runs there keeps running.`,
		Flags:  append(hubFlags(), timeoutFlag("to wait for the hub", time.Minute)),
		Action: func(c *cli.Context) error { return quarantine(c, s, true) },
	}
}

func releaseCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "release",
		Usage:       "end the quarantine of a cluster",
		ArgsUsage:   "CLUSTER",
		Description: "The agent gets its rights back and continues with its credential, unless that has expired in the meantime.",
		Flags:       append(hubFlags(), timeoutFlag("to wait for the hub", time.Minute)),
		Action:      func(c *cli.Context) error { return quarantine(c, s, false) },
	}
}

// quarantine waits until the hub has applied it, because without a running hub the rights do not change.
func quarantine(c *cli.Context, s Streams, on bool) error {
	name, err := oneArgument(c, "the name of the CLUSTER")
	if err != nil {
		return err
	}
	hub, err := connect(c)
	if err != nil {
		return err
	}
	if err := hub.Quarantine(c.Context, hub.namespace, name, on); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	if err := hub.AwaitQuarantine(ctx, hub.namespace, name, on); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "Cluster %s/%s is %s.\n", hub.namespace, name, map[bool]string{true: "in quarantine", false: "released"}[on])
	return nil
}

func revokeCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "revoke",
		Usage:     "permanently revoke the credential of a cluster's agent",
		ArgsUsage: "CLUSTER",
		Description: `It deletes the ServiceAccounts of the cluster's agent, so that the API server rejects their tokens, at the latest after ten
seconds. If the hub has a kubeconfig of the cluster, it installs the agent again, which then registers again. Any other agent
needs a new token: muster token create NAME --cluster CLUSTER.`,
		Flags: hubFlags(),
		Action: func(c *cli.Context) error {
			name, err := oneArgument(c, "the name of the CLUSTER")
			if err != nil {
				return err
			}
			hub, err := connect(c)
			if err != nil {
				return err
			}
			revoked, err := hub.Revoke(c.Context, hub.namespace, name)
			switch {
			case err != nil:
				return err
			case len(revoked) == 0:
				fmt.Fprintf(s.Err, "No agent has a credential for Cluster %s/%s.\n", hub.namespace, name)
			default:
				fmt.Fprintf(s.Out, "The credential of Cluster %s/%s is revoked; it was issued for %s.\n", hub.namespace, name, strings.Join(revoked, ", "))
			}
			return nil
		},
	}
}
