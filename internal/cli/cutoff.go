package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func quarantineCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "quarantine",
		Usage:     "cut a cluster's agent off from the hub, immediately and until it is released",
		ArgsUsage: "CLUSTER",
		Description: `The agent keeps its identity but loses all of its rights. Nothing is sent to the cluster, and nobody can register for it. What
already runs there keeps running.`,
		Flags:  cutoffFlags(),
		Action: func(c *cli.Context) error { return quarantine(c, s, true) },
	}
}

func releaseCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "release",
		Usage:       "end the quarantine of a cluster",
		ArgsUsage:   "CLUSTER",
		Description: "The agent gets its rights back and continues with the credential it has, unless that has expired in the meantime.",
		Flags:       cutoffFlags(),
		Action:      func(c *cli.Context) error { return quarantine(c, s, false) },
	}
}

func cutoffFlags() []cli.Flag {
	return append(hubFlags(), &cli.DurationFlag{Name: flagTimeout, Value: time.Minute, Usage: "maximum `DURATION` to wait for the hub"})
}

// quarantine waits for the hub's word: a person who cuts an agent off has to know whether there is a hub that does it.
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
		Description: `It deletes the ServiceAccounts of the cluster's agent, so that the API server itself refuses their tokens, which it may
still accept for up to ten seconds. If the hub has a kubeconfig of the cluster, it installs the agent again, which then registers
anew. Any other agent needs a new token: muster token create NAME --cluster CLUSTER.`,
		Flags:  hubFlags(),
		Action: func(c *cli.Context) error { return revoke(c, s) },
	}
}

func revoke(c *cli.Context, s Streams) error {
	name, err := oneArgument(c, "the name of the CLUSTER")
	if err != nil {
		return err
	}
	hub, err := connect(c)
	if err != nil {
		return err
	}
	revoked, err := hub.Revoke(c.Context, hub.namespace, name)
	if err != nil {
		return err
	}
	if len(revoked) == 0 {
		fmt.Fprintf(s.Err, "No agent has a credential for Cluster %s/%s.\n", hub.namespace, name)
		return nil
	}
	fmt.Fprintf(s.Out, "The credential of Cluster %s/%s is void; it came from %s.\n", hub.namespace, name, strings.Join(revoked, ", "))
	return nil
}
