package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	flagMemberContext = "member-context"
	flagWait          = "wait"
	flagFromDir       = "from-dir"
	flagCreateAccount = "create-service-account"
)

func importCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "give the hub the kubeconfigs of clusters; the hub installs the agent there",
		ArgsUsage: "[NAME]",
		Description: `muster --kubeconfig hub.yaml -n fleet-default import east --member-kubeconfig east.yaml --wait
muster -n fleet-default import --from-dir kubeconfigs             one cluster for each file, named after the file
muster -n fleet-default import --member-kubeconfig all.yaml --member-context east --member-context west
muster -n fleet-default import east --member-kubeconfig cloud.yaml --create-service-account

It creates the Secret NAME-kubeconfig and the Cluster NAME. The Secret contains only one context of the kubeconfig, with the content of
the files that it refers to. If one of several clusters cannot be imported, the others are imported nevertheless; a table at the end shows
which failed, and the exit code is 1. Several clusters are named after their files without the extension, or after their contexts.

The hub runs no programs, so it refuses a kubeconfig with an exec plugin, a program that obtains the credential; kubeconfigs of cloud
providers have one. With --create-service-account, that program runs on this machine. The command creates a ServiceAccount with the
ClusterRole cluster-admin on the member, in namespace kube-system, and gives the hub a kubeconfig with its token, which does not expire.
Your user needs the same rights there. With --member-kubeconfig, muster remove deletes the ServiceAccount; without it, muster remove prints
the command that deletes it.`,
		Flags: append(hubFlags(),
			&cli.StringFlag{Name: flagMemberKubeconfig, Usage: "`FILE` with the kubeconfig of the cluster to import"},
			&cli.StringSliceFlag{Name: flagMemberContext, Usage: "`NAME` of a context in that kubeconfig; may be repeated; default: its current context"},
			&cli.StringFlag{Name: flagFromDir, Usage: "`DIRECTORY` with a kubeconfig for each cluster to import"},
			&cli.StringSliceFlag{Name: flagLabel, Usage: "`KEY=VALUE` label for each Cluster; may be repeated"},
			&cli.BoolFlag{Name: flagCreateAccount, Usage: "create a ServiceAccount with all rights on each cluster, and give the hub its token instead of your credential"},
			&cli.BoolFlag{Name: flagDryRun, Usage: "have the hub check what would be created, and create nothing"},
			&cli.BoolFlag{Name: flagWait, Usage: "wait until the clusters are registered, and print their states; a failure that a person has to correct ends the wait"},
			timeoutFlag("to import one cluster, with --wait until it is registered", 5*time.Minute),
		),
		Action: func(c *cli.Context) error { return importClusters(c, s) },
	}
}

// toImport is a cluster to import.
type toImport struct{ name, file, context string }

func importClusters(c *cli.Context, s Streams) error {
	members, err := membersToImport(c)
	if err != nil {
		return err
	}
	labels, err := parseLabels(c.StringSlice(flagLabel))
	if err != nil {
		return err
	}
	if len(members) == 1 && c.String(flagFromDir) == "" { // report an invalid name or kubeconfig before the first request
		if _, err := prepare(members[0], c.Bool(flagCreateAccount)); err != nil {
			return err
		}
	}
	hub, err := connect(c)
	if err != nil {
		return err
	}

	var output sync.Mutex
	say := func(w io.Writer, format string, arguments ...any) {
		output.Lock()
		defer output.Unlock()
		fmt.Fprintf(w, format, arguments...)
	}
	one := func(m toImport) error {
		ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
		defer cancel()
		kubeconfig, err := prepare(m, c.Bool(flagCreateAccount))
		if err != nil {
			return err
		}
		wanted := admin.Import{Namespace: hub.namespace, Name: m.name, Kubeconfig: kubeconfig, Labels: labels, DryRun: c.Bool(flagDryRun)}
		if c.Bool(flagCreateAccount) {
			err = importWithAccount(ctx, hub, m, wanted, say, s)
		} else {
			err = hub.Import(ctx, wanted)
		}
		if err != nil {
			return err
		}
		if wanted.DryRun {
			say(s.Out, "Cluster %s/%s would be created, with Secret %s.\n", wanted.Namespace, m.name, wanted.SecretName())
			return nil
		}
		say(s.Out, "Cluster %s/%s created, with Secret %s.\n", wanted.Namespace, m.name, wanted.SecretName())
		if !c.Bool(flagWait) {
			return nil
		}
		began, prefix := s.Now(), ""
		if len(members) > 1 {
			prefix = m.name + ": "
		}
		_, err = hub.AwaitRegistered(ctx, wanted.Namespace, m.name, func(v view.Cluster) {
			say(s.Err, "%s%s\n", prefix, progressLine(v, s.Now().Sub(began)))
		})
		if err == nil {
			say(s.Out, "Cluster %s/%s is registered.\n", wanted.Namespace, m.name)
		}
		return err
	}

	const atOnce = 8
	failures := make([]error, len(members))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, m := range members {
		group.Go(func() error {
			failures[i] = one(m)
			return nil
		})
	}
	_ = group.Wait()

	if len(members) > 1 || c.String(flagFromDir) != "" {
		if err := printImports(s.Out, c, members, failures); err != nil {
			return err
		}
	}
	failed := len(slices.DeleteFunc(slices.Clone(failures), func(err error) bool { return err == nil }))
	switch {
	case failed > 0 && len(members) == 1:
		return failures[0]
	case failed > 0:
		return fmt.Errorf("%d of %d clusters could not be imported", failed, len(members))
	case !c.Bool(flagWait) && !c.Bool(flagDryRun):
		fmt.Fprintf(s.Out, "The hub now installs the agent. To see the state: %s\n", hub.command(hub.namespace, "clusters", "-o", "wide"))
	}
	return nil
}

// membersToImport returns the clusters that the command line names.
func membersToImport(c *cli.Context) (members []toImport, err error) {
	file, contexts := c.String(flagMemberKubeconfig), c.StringSlice(flagMemberContext)
	switch directory := c.String(flagFromDir); {
	case directory != "" && (file != "" || len(contexts) > 0 || c.Args().Present()):
		return nil, fmt.Errorf("--%s cannot be combined with NAME, --%s or --%s", flagFromDir, flagMemberKubeconfig, flagMemberContext)
	case directory != "":
		entries, err := os.ReadDir(directory)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flagFromDir, err)
		}
		for _, entry := range entries {
			if name := entry.Name(); !entry.IsDir() && !strings.HasPrefix(name, ".") {
				members = append(members, toImport{strings.TrimSuffix(name, filepath.Ext(name)), filepath.Join(directory, name), ""})
			}
		}
		if len(members) == 0 {
			return nil, fmt.Errorf("--%s: there is no file in %s", flagFromDir, directory)
		}
		return members, nil
	case len(contexts) > 1 && c.Args().Present():
		return nil, fmt.Errorf("several clusters are named after their contexts: omit %q", c.Args().First())
	case len(contexts) > 1 && file != "":
		for _, context := range contexts {
			members = append(members, toImport{context, file, context})
		}
		return members, nil
	}
	name, err := oneArgument(c, "the NAME of the cluster")
	if err != nil {
		return nil, err
	}
	if file == "" {
		return nil, fmt.Errorf("no cluster to import: pass its kubeconfig: muster import NAME --%s FILE", flagMemberKubeconfig)
	}
	return []toImport{{name, file, strings.Join(contexts, "")}}, nil
}

// prepare returns the kubeconfig for the hub, and checks the name of the cluster. If withoutUser is true, the kubeconfig contains no credential:
// the caller creates another one with the token of a ServiceAccount.
func prepare(m toImport, withoutUser bool) ([]byte, error) {
	var user *clientcmdapi.AuthInfo
	if withoutUser {
		user = clientcmdapi.NewAuthInfo()
	}
	kubeconfig, err := selfContained(m.file, m.context, user)
	return kubeconfig, errors.Join(checkName(m.name), err)
}

// importWithAccount imports a cluster with the token of a ServiceAccount that it creates on the member. It first sends each object to its API
// server in a dry run.
func importWithAccount(
	ctx context.Context, hub *namespacedHub, m toImport, wanted admin.Import, say func(io.Writer, string, ...any), s Streams,
) error {
	account, err := hub.AccountOf(ctx, wanted.Namespace, wanted.Name)
	if err != nil {
		return err
	}
	wanted.Annotations = map[string]string{fleet.MemberAccountAnnotation: account.String()}
	dryRun := wanted
	dryRun.DryRun = true
	if err := hub.Import(ctx, dryRun); err != nil {
		return err
	}
	member, err := memberClient(m.file, m.context)
	if err != nil {
		return err
	}
	say(s.Err, "%s: ServiceAccount %s on the member gets all rights there (ClusterRole %s), like the agent that the hub installs. "+
		"Its token does not expire; Secret %s/%s on the hub contains it.\n", m.name, account, admin.AccountRole, wanted.Namespace, wanted.SecretName())
	if _, err := account.Ensure(ctx, member, true); err != nil || wanted.DryRun {
		return err
	}

	token, err := account.Ensure(ctx, member, false)
	if err == nil {
		wanted.Kubeconfig, err = selfContained(m.file, m.context, &clientcmdapi.AuthInfo{Token: token})
	}
	if err == nil {
		err = hub.Import(ctx, wanted)
	}
	if err != nil {
		return fmt.Errorf("%w. To continue, repeat the command. To undo its changes on the member: %s", err, removeAccount(account, m.file, m.context))
	}
	return nil
}

// removeAccount returns the command that removes a ServiceAccount from its member. The ClusterRoleBinding owns the ServiceAccount, so deleting
// the binding is enough.
func removeAccount(account admin.MemberAccount, file, context string) string {
	return memberConnection(file, context).program("kubectl", account.Namespace, "delete", "clusterrolebinding", account.Name)
}

func printImports(w io.Writer, c *cli.Context, members []toImport, failures []error) error {
	done := "Created"
	switch {
	case c.Bool(flagDryRun):
		done = "Checked"
	case c.Bool(flagWait):
		done = view.StateRegistered
	}
	var rows [][]string
	for i, m := range members {
		row := []string{m.name, m.file, m.context, done, ""}
		if err := failures[i]; err != nil {
			row[3], row[4] = view.StateFailed, err.Error()
		}
		rows = append(rows, row)
	}
	return view.PrintTable(w, []string{"NAME", "FILE", "CONTEXT", "RESULT", "MESSAGE"}, rows)
}

func progressLine(v view.Cluster, after time.Duration) string {
	state := v.State
	if v.Reason != "" && v.Reason != v.State {
		state += " (" + v.Reason + ")"
	}
	if v.Message != "" {
		state += ": " + v.Message
	}
	return fmt.Sprintf("%6.1f s  %s", after.Seconds(), view.Printable(state))
}

// selfContained returns one context of a kubeconfig in a form that works on another machine: it embeds files, and fails if the credential is
// obtained with a program. If user is not nil, it replaces the user of the context.
func selfContained(file, context string, user *clientcmdapi.AuthInfo) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of the cluster to import: %w", err)
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s is not a kubeconfig: %s. Pass the kubeconfig of the cluster to import; "+
			"`kubectl config view --raw --minify --flatten` prints the kubeconfig of the current context", file, notKubeconfig(data))
	}
	if context != "" {
		config.CurrentContext = context
	}
	if current := config.Contexts[config.CurrentContext]; current != nil && user != nil && config.AuthInfos[current.AuthInfo] != nil {
		config.AuthInfos[current.AuthInfo] = user
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

// notKubeconfig returns the reason why clientcmd cannot read a file. It does not use the error of clientcmd, which describes Go types and may
// quote credentials from the file.
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
			"run the command again with --%s, which gives the hub the token of a ServiceAccount", current.AuthInfo, flagCreateAccount)
	}
	return nil
}
