package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	flagSelector     = "selector"
	flagWatch        = "watch"
	flagState        = "state"
	flagNotReady     = "not-ready"
	flagSort         = "sort"
	flagDeleteTokens = "delete-tokens"
)

// sortings maps the values of --sort to the comparison of two clusters.
var sortings = map[string]func(a, b view.Cluster) int{
	"name": func(a, b view.Cluster) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	},
	"state": func(a, b view.Cluster) int {
		return slices.Index(view.ClusterStates, b.State) - slices.Index(view.ClusterStates, a.State) // registered clusters last
	},
	"last-seen": func(a, b view.Cluster) int { return lastSeen(a).Compare(lastSeen(b)) },
}

func lastSeen(v view.Cluster) time.Time {
	if v.LastSeen == nil {
		return time.Time{}
	}
	return v.LastSeen.Time
}

func clustersCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "clusters",
		Usage:     "list the clusters, with how each was registered and its state",
		ArgsUsage: "[NAME...]",
		Description: `BUNDLES is READY/WANTED: WANTED counts the BundleDeployments of the cluster, and READY those that are ready. A Bundle for which the
hub cannot create one, for example because its Helm values cannot be rendered, is not counted: REASON and muster describe show it. REASON of
a registered cluster is that of the first condition that is not as it should be; Ready is the last of them. UNAPPLIED, in the wide output,
counts the Bundles whose current version the agent has not applied. SETTINGS is Applied if the agent runs with the
settings that the hub wants. LAST-SEEN is the time of the last heartbeat, which is in a Lease in the cluster namespace; without the right to
list Leases, and in the lines that --watch adds, it is the time in the status, which can be older. A line with totals is printed to the standard
error, and another one if no hub runs, because nobody updates the states then.`,
		Flags: listFlags(
			&cli.StringFlag{Name: flagSelector, Aliases: []string{"l"}, Usage: "`SELECTOR` of labels, such as env=prod,region!=eu"},
			&cli.StringSliceFlag{Name: flagState, Usage: "only clusters in this `STATE`; may be repeated: " + strings.Join(view.ClusterStates, ", ")},
			&cli.BoolFlag{Name: flagNotReady, Usage: "only clusters with Bundles that are not ready"},
			&cli.StringFlag{Name: flagSort, Value: "name", Usage: "`ORDER` of the list: " + strings.Join(slices.Sorted(maps.Keys(sortings)), ", ")},
			&cli.BoolFlag{Name: flagWatch, Aliases: []string{"w"}, Usage: "after the list, print each cluster whose state or Bundles change, until interrupted"},
		),
		Action: func(c *cli.Context) error { return clusters(c, s) },
	}
}

func clusters(c *cli.Context, s Streams) error {
	states, order := c.StringSlice(flagState), sortings[c.String(flagSort)]
	for _, state := range states {
		if !slices.Contains(view.ClusterStates, state) {
			return fmt.Errorf("--state is %q: it must be one of %s", state, strings.Join(view.ClusterStates, ", "))
		}
	}
	if order == nil {
		return fmt.Errorf("--sort is %q: it must be one of %s", c.String(flagSort), strings.Join(slices.Sorted(maps.Keys(sortings)), ", "))
	}
	if _, err := labels.Parse(c.String(flagSelector)); err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	hub, err := connect(c)
	if err != nil {
		return err
	}
	namespace, where := scope(c, hub)
	options := metav1.ListOptions{LabelSelector: c.String(flagSelector)}
	names := c.Args().Slice()
	wanted := func(v view.Cluster) bool {
		return (len(states) == 0 || slices.Contains(states, v.State)) && (v.NotReady || !c.Bool(flagNotReady))
	}

	shown := []view.Cluster{}
	missing := slices.Clone(names)
	add := func(cluster *fleet.Cluster) error {
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == cluster.Name })
		if v := view.OfCluster(cluster); wanted(v) {
			shown = append(shown, v)
		}
		return nil
	}
	if len(names) == 0 {
		err = hub.EachCluster(c.Context, namespace, options, add)
	}
	for _, name := range names {
		one := options
		one.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		err = errors.Join(err, hub.EachCluster(c.Context, namespace, one, add))
	}
	if err != nil {
		return err
	}
	var all []*view.Cluster
	for i := range shown {
		all = append(all, &shown[i])
	}
	if err := hub.AddHeartbeats(c.Context, all...); err != nil {
		fmt.Fprintln(s.Err, "LAST-SEEN can be older than the last heartbeat:", err)
	}
	slices.SortStableFunc(shown, sortings["name"])
	slices.SortStableFunc(shown, order)

	out := clusterColumns.in(c.String(flagOutput), c.Bool(flagNoHeaders), s)
	switch {
	case c.Bool(flagWatch):
		err = out.each(shown...)
	case out.table != nil && len(shown)+len(missing) == 0:
		fmt.Fprintln(s.Err, "No clusters "+where+".")
		return nil
	default:
		err = out.list(shown)
	}
	if err != nil {
		return err
	}
	if out.table != nil {
		fmt.Fprintln(s.Err, totals(shown))
	}
	if silence := hub.HubSilence(c.Context, s.Now()); silence > 0 {
		fmt.Fprintf(s.Err, "No hub has renewed its Lease in namespace %s for %s, so the states can be older than that: `muster%s check` finds out why.\n",
			registration.DefaultSystemNamespace, duration.HumanDuration(silence), hub.Flags)
	}
	if len(missing) > 0 {
		return fmt.Errorf("there is no Cluster %s %s", strings.Join(missing, ", "), where)
	}
	if !c.Bool(flagWatch) {
		return nil
	}

	printed := map[string]view.Cluster{}
	for _, v := range shown {
		printed[v.Namespace+"/"+v.Name] = withoutLastSeen(v)
	}
	return hub.WatchClusters(c.Context, namespace, options, func(cluster *fleet.Cluster, deleted bool) error {
		v, key := view.OfCluster(cluster), cluster.Namespace+"/"+cluster.Name
		_, known := printed[key]
		switch {
		case len(names) > 0 && !slices.Contains(names, v.Name), deleted && !known:
			return nil
		case deleted:
			v.State, v.Reason, v.Message = "Deleted", "", ""
			delete(printed, key)
		case !wanted(v) && !known, reflect.DeepEqual(printed[key], withoutLastSeen(v)):
			return nil
		default:
			printed[key] = withoutLastSeen(v)
		}
		return out.each(v)
	})
}

// withoutLastSeen returns a summary without the time of the last heartbeat: a heartbeat alone is not worth a line.
func withoutLastSeen(v view.Cluster) view.Cluster {
	v.LastSeen = nil
	return v
}

// totals returns a line such as "3 clusters: 2 Registered, 1 Offline; 1 with pending settings, 2 with Bundles that are not ready".
func totals(clusters []view.Cluster) string {
	count, pending, unapplied, notReady := map[string]int{}, 0, 0, 0
	for _, v := range clusters {
		count[v.State]++
		if v.Settings == view.SettingsPending {
			pending++
		}
		if v.Unapplied > 0 {
			unapplied++
		}
		if v.NotReady {
			notReady++
		}
	}
	var parts, more []string
	for _, state := range view.ClusterStates {
		if count[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[state], state))
		}
	}
	text := fmt.Sprintf("%d clusters", len(clusters))
	if len(clusters) == 1 {
		text = "1 cluster"
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	for _, m := range []struct {
		count int
		with  string
	}{{pending, "pending settings"}, {unapplied, "unapplied Bundles"}, {notReady, "Bundles that are not ready"}} {
		if m.count > 0 {
			more = append(more, fmt.Sprintf("%d with %s", m.count, m.with))
		}
	}
	if len(more) > 0 {
		text += "; " + strings.Join(more, ", ")
	}
	return text
}

var clusterColumns = columns[view.Cluster]{
	kind:       "Cluster",
	name:       func(v view.Cluster) (string, string) { return v.Namespace, v.Name },
	header:     []string{"NAMESPACE", "NAME", "WAY-IN", "STATE", "REASON", "BUNDLES", "LAST-SEEN"},
	wideHeader: []string{"SETTINGS", "UNAPPLIED", "KUBERNETES", "AGENT", "MESSAGE"},
	row: func(v view.Cluster, now time.Time) []string {
		return []string{v.Namespace, v.Name, v.WayIn, v.State, v.Reason, v.Bundles, view.Ago(v.LastSeen, now)}
	},
	wideRow: func(v view.Cluster, _ time.Time) []string {
		return []string{v.Settings, strconv.Itoa(v.Unapplied), v.Kubernetes, v.Agent, v.Message}
	},
}

func quarantineCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "quarantine",
		Usage:     "remove the rights of a cluster's agent on the hub, immediately and until the cluster is released",
		ArgsUsage: "CLUSTER",
		Description: `The agent keeps its ServiceAccount but loses all rights, except to read Contents whose names it knows. The hub sends nothing to
the cluster, and nobody can register for it. What already runs there keeps running. If its credential may be stolen, run muster revoke
before muster release. The command waits until no RoleBinding of the agent is left, if the user may list RoleBindings.`,
		Flags: append(hubFlags(), timeoutFlag("to wait for the hub", time.Minute),
			&cli.StringFlag{Name: flagMessage, Aliases: []string{"m"}, Usage: "`TEXT` with the reason; muster describe shows it with the name of the user"}),
		Action: func(c *cli.Context) error { return quarantine(c, s, true) },
	}
}

func releaseCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "end the quarantine of a cluster",
		ArgsUsage: "CLUSTER",
		Description: `The agent gets its rights back and continues with its credential, unless that has expired in the meantime. So does whoever has
stolen the credential: run muster revoke first.`,
		Flags:  append(hubFlags(), timeoutFlag("to wait for the hub", time.Minute)),
		Action: func(c *cli.Context) error { return quarantine(c, s, false) },
	}
}

// quarantine starts or ends the quarantine of a cluster. It waits until the hub has seen it and, at its beginning, until the agent has no rights: without a
// running hub, they do not change.
func quarantine(c *cli.Context, s Streams, on bool) error {
	hub, name, err := connectWithName(c, "the name of the CLUSTER")
	if err != nil {
		return err
	}
	if err := hub.Quarantine(c.Context, hub.namespace, name, on, c.String(flagMessage)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	if err := hub.AwaitQuarantine(ctx, hub.namespace, name, on); err != nil {
		return err
	}
	if !on {
		fmt.Fprintf(s.Out, "Cluster %s/%s is released.\n", hub.namespace, name)
		return nil
	}
	switch err := hub.AwaitNoRights(ctx, hub.namespace, name); {
	case apierrors.IsForbidden(err):
		fmt.Fprintf(s.Out, "Cluster %s/%s is in quarantine. Whether its agent still has rights was not checked: %v\n", hub.namespace, name, err)
	case err != nil:
		return err
	default:
		fmt.Fprintf(s.Out, "Cluster %s/%s is in quarantine. The rights of its agent are withdrawn.\n", hub.namespace, name)
	}
	return nil
}

func revokeCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "revoke",
		Usage:     "permanently revoke the credential of a cluster's agent",
		ArgsUsage: "CLUSTER",
		Description: `It deletes the ServiceAccounts of the cluster's agent. The API server then rejects their tokens within ten seconds. If the hub has a
kubeconfig of the cluster, it installs the agent again, which then registers again with a new import token: revoke deletes the old one. Any
other agent needs a new token: muster token create NAME --cluster CLUSTER. Whoever holds an earlier token made for this cluster can
register it again; revoke names these tokens, and deletes them with --delete-tokens. Without --yes, it revokes nothing, and tells what
follows.`,
		Flags: append(hubFlags(),
			&cli.BoolFlag{Name: flagDeleteTokens, Usage: "also delete the registration tokens that are only for this cluster"},
			&cli.BoolFlag{Name: flagYes, Aliases: []string{"y"}, Usage: "revoke it"}),
		Action: func(c *cli.Context) error {
			hub, cluster, _, err := connectWithCluster(c)
			if err != nil {
				return err
			}
			name := cluster.Name
			if !c.Bool(flagYes) {
				fmt.Fprintf(s.Out, "The agent of Cluster %s/%s loses its credential permanently.\n%s\n", hub.namespace, name, afterRevocation(hub, cluster))
				return errors.New("nothing was revoked: repeat the command with --yes")
			}
			revoked, err := hub.Revoke(c.Context, hub.namespace, name, c.Bool(flagDeleteTokens))
			switch {
			case len(revoked.Requests) > 0:
				fmt.Fprintf(s.Out, "The credential of Cluster %s/%s is revoked; it was issued for %s.\n%s\n",
					hub.namespace, name, strings.Join(revoked.Requests, ", "), afterRevocation(hub, cluster))
			case err == nil:
				fmt.Fprintf(s.Err, "No agent has a credential for Cluster %s/%s.\n", hub.namespace, name)
			}
			for _, token := range revoked.Tokens {
				fmt.Fprintf(s.Out, "Whoever holds token %s can register the cluster again; "+
					"delete it with `muster%s -n %s token revoke %s`, or all such tokens with --%s.\n", token, hub.Flags, hub.namespace, token, flagDeleteTokens)
			}
			return err
		},
	}
}

// afterRevocation describes how the cluster gets a credential again after the current one was revoked.
func afterRevocation(hub *namespacedHub, cluster *fleet.Cluster) string {
	quarantined := cluster.Spec.Quarantined
	switch name := cluster.Name; {
	case cluster.Spec.KubeConfigSecret != "" && quarantined:
		return "The hub has a kubeconfig: it installs the agent again when the quarantine ends."
	case cluster.Spec.KubeConfigSecret != "":
		return "The hub has a kubeconfig and installs the agent again at once. To keep it out, quarantine the cluster first: " +
			hub.command(hub.namespace, "quarantine", name)
	default:
		text := "The hub has no kubeconfig. To admit the agent again"
		if quarantined {
			text += ", after the quarantine"
		}
		return text + ": " + hub.registerAgain(hub.namespace, name)
	}
}
