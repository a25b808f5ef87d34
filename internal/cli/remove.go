package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/describe"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	flagYes           = "yes"
	flagDryRun        = "dry-run"
	flagKeepWorkloads = "keep-workloads"
)

func removeCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "remove",
		Usage:     "remove a cluster, with what was deployed to it",
		ArgsUsage: "CLUSTER",
		Description: `The command lists the objects of the cluster, and tells which of them will be deleted and which will remain. Without --yes, it removes
nothing. A connected agent uninstalls its releases and then itself; Bundles with keepResources leave their objects on the member. The hub
gives up after half a minute, and the command then tells what may be left on the member.

With --keep-workloads, the agent first applies all Bundles with keepResources. The Cluster is removed only after the agent has reported
this. Otherwise the command fails, and nothing is removed.`,
		Flags: append(append(hubFlags(), memberFlags("the member, to remove the ServiceAccount of the import there")...),
			&cli.BoolFlag{Name: flagYes, Aliases: []string{"y"}, Usage: "remove it"},
			&cli.BoolFlag{Name: flagKeepWorkloads, Usage: "leave what was deployed on the member, and remove only the agent"},
			&cli.BoolFlag{Name: flagDryRun, Usage: "ask the API server whether it would delete the Cluster, and remove nothing"},
			timeoutFlag("to wait for the hub", 2*time.Minute),
		),
		Action: func(c *cli.Context) error { return remove(c, s) },
	}
}

func remove(c *cli.Context, s Streams) error {
	hub, cluster, member, err := connectWithCluster(c)
	if err != nil {
		return err
	}
	name, file, memberContext := cluster.Name, c.String(flagMemberKubeconfig), c.String(flagMemberContext)
	var account admin.MemberAccount
	recorded := cluster.Annotations[fleet.MemberAccountAnnotation]
	hasAccount := recorded != ""
	if hasAccount {
		if account, err = hub.AccountOf(c.Context, hub.namespace, name); err != nil {
			return err
		}
	}
	switch {
	case member != nil && !hasAccount:
		return fmt.Errorf("muster import has created no ServiceAccount for Cluster %s/%s: omit --%s", hub.namespace, name, flagMemberKubeconfig)
	case hasAccount && recorded != account.String():
		return fmt.Errorf("nothing was removed: the annotation %s of Cluster %s/%s names ServiceAccount %q, but muster import creates %s. "+
			"The annotation was changed, or Namespace %s was created again. Do not trust the name in the annotation: look on the member which ServiceAccount "+
			"the import has created, and delete its ClusterRoleBinding. Then remove the annotation, and repeat the command",
			fleet.MemberAccountAnnotation, hub.namespace, name, recorded, account, hub.namespace)
	}
	d, err := describe.Of(c.Context, hub.Hub, hub.namespace, name, s.Now())
	if err != nil {
		return err
	}
	keep := c.Bool(flagKeepWorkloads)
	if keep && d.Cluster.State != view.StateRegistered {
		return fmt.Errorf("Cluster %s/%s is %s: only an agent that is registered and connected can confirm that it keeps the workloads; nothing was removed",
			hub.namespace, name, d.Cluster.State)
	}
	fmt.Fprintf(s.Out, "%s\n%s", d.Tree(), consequences(cluster, d, keep))
	switch {
	case member != nil:
		fmt.Fprintf(s.Out, "ServiceAccount %s, with which the hub connects to the member, is deleted.\n", account)
	case hasAccount:
		fmt.Fprintf(s.Out, "ServiceAccount %s, with which the hub connects to the member, remains there, bound to ClusterRole %s, unless you pass --%s.\n", account, admin.AccountRole, flagMemberKubeconfig)
	}
	switch {
	case c.Bool(flagDryRun):
		if err := hub.Remove(c.Context, hub.namespace, name, cluster.UID, true); err != nil {
			return err
		}
		fmt.Fprintln(s.Out, "\nNothing was removed: it was a dry run.")
		return nil
	case !c.Bool(flagYes):
		return errors.New("nothing was removed: repeat the command with --yes")
	}

	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	began := s.Now()
	progress := func(status string) {
		fmt.Fprintf(s.Err, "%6.1f s  %s\n", s.Now().Sub(began).Seconds(), view.Printable(status))
	}
	if keep {
		err = hub.RemoveKeepingWorkloads(ctx, cluster, progress)
	} else {
		err = hub.Remove(ctx, hub.namespace, name, cluster.UID, false)
	}
	if err != nil {
		return err
	}
	left, err := hub.AwaitRemoved(ctx, hub.namespace, name, cluster.UID, progress)
	switch {
	case err != nil && hasAccount: // a repeated command does not find the Cluster
		return fmt.Errorf("%w. To remove the ServiceAccount of the import, with the kubeconfig of the member: %s", err, removeAccount(account, file, memberContext))
	case err != nil:
		return err
	}
	fmt.Fprintf(s.Out, "\nCluster %s/%s is removed.\n", hub.namespace, name)
	if left != "" {
		fmt.Fprintln(s.Err, view.Printable(left))
	}
	switch {
	case member != nil:
		if err := account.Remove(ctx, member); err != nil {
			return fmt.Errorf("%w. To remove the ServiceAccount of the import: %s", err, removeAccount(account, file, memberContext))
		}
		fmt.Fprintf(s.Out, "ServiceAccount %s is removed from the member.\n", account)
	case hasAccount:
		fmt.Fprintf(s.Out, "To remove the ServiceAccount of the import, with the kubeconfig of the member: %s\n", removeAccount(account, "", ""))
	}
	return nil
}

// consequences describes the effect of a deletion of a Cluster on the member, and on objects that users have created. If keep is true, the
// workloads stay.
func consequences(cluster *fleet.Cluster, d *describe.Description, keep bool) string {
	var bundles, stays []string
	var add func([]*describe.Related)
	add = func(objects []*describe.Related) {
		for _, r := range objects {
			switch {
			case keep && r.Name == registration.AgentBundleName(cluster.Name): // the agent goes
			case r.Kind == "BundleDeployment":
				bundles = append(bundles, r.Name)
			case r.Kind == "Secret", r.Kind == "ClusterRegistrationToken" && r.Name != registration.ImportTokenName(cluster.Name):
				stays = append(stays, view.Printable(r.Kind+" "+r.Namespace+"/"+r.Name))
			}
			add(r.Objects)
		}
	}
	add(d.Objects)
	slices.Sort(bundles)
	text := "No agent has connected: there is nothing to remove on the member.\n"
	switch {
	case cluster.Labels[fleet.ClusterManagementLabel] != "":
		text = "The label " + fleet.ClusterManagementLabel + " assigns the Cluster to another controller, which decides about the member.\n"
	case keep:
		text = fmt.Sprintf("On the member, the agent leaves the objects of %d Bundles (%s), without the history of their Helm releases, and uninstalls itself.\n",
			len(bundles), strings.Join(bundles, ", "))
	case cluster.Status.Agent.LastSeen.IsZero():
	case d.Cluster.State == view.StateRegistered:
		text = fmt.Sprintf("On the member, the agent uninstalls %d Bundles (%s), and then itself.\n", len(bundles), strings.Join(bundles, ", "))
	case cluster.Spec.KubeConfigSecret != "":
		text = fmt.Sprintf("The agent is not connected. The hub removes it with the kubeconfig; what it deployed (%s) can be left on the member.\n", strings.Join(bundles, ", "))
	default:
		text = fmt.Sprintf("The agent is not connected: the agent and what it deployed (%s) will be left on the member.\n", strings.Join(bundles, ", "))
	}
	return text + "These stay: " + strings.Join(append(stays, "the namespaces on the member"), ", ") + ". Everything else in the tree is deleted.\n"
}

func rotateCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "rotate",
		Usage:     "give the agent of a cluster a new credential, and revoke the current one",
		ArgsUsage: "CLUSTER",
		Description: `The agent registers again with a new identity. It uses its current credential until it has the new one; then the hub deletes the
old identity. If the hub has a kubeconfig of the cluster, it installs the agent again, even if the agent is offline. For any other cluster,
pass --member-kubeconfig: the command then stores on the member a registration token that can be used once, for this cluster only, and
deletes it afterwards.`,
		Flags: append(append(hubFlags(), memberFlags("the member, if the hub has none")...),
			timeoutFlag("to wait for the agent", 5*time.Minute),
		),
		Action: func(c *cli.Context) error { return rotate(c, s) },
	}
}

func rotate(c *cli.Context, s Streams) error {
	hub, cluster, member, err := connectWithCluster(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
	defer cancel()
	began := s.Now()
	request, err := hub.Rotate(ctx, cluster, member, func(v view.Cluster) { fmt.Fprintln(s.Err, progressLine(v, s.Now().Sub(began))) })
	if err != nil {
		return err
	}
	fmt.Fprintln(s.Out, rotatedMessage(cluster, request))
	return nil
}

// rotatedMessage is printed after a rotation. An agent of Muster reports the names of both requests. It reports no earlier request if it has taken over
// the credential of an agent of Fleet, which reports none.
func rotatedMessage(before *fleet.Cluster, request string) string {
	agent, earlier := fmt.Sprintf("The agent of Cluster %s/%s", before.Namespace, before.Name), before.Status.Agent.Registration
	switch {
	case request == "":
		return view.Printable(agent + " was installed again. It does not report the request of its credential.")
	case earlier == "":
		return view.Printable(fmt.Sprintf("%s uses the credential of request %s.", agent, request))
	}
	return view.Printable(fmt.Sprintf("%s uses the credential of request %s instead of %s.", agent, request, earlier))
}
