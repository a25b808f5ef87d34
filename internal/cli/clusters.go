package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
)

const flagAll = "all-namespaces"

func allFlag() cli.Flag {
	return &cli.BoolFlag{Name: flagAll, Aliases: []string{"A"}, Usage: "list across all namespaces"}
}

func clustersCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "clusters",
		Usage: "list the clusters, with how each was registered and its state",
		Flags: append(hubFlags(), allFlag(), outputFlag(formatWide, formatJSON, formatYAML)),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return listClusters(c, s)
		},
	}
}

// namespaceOf is where to list; empty means everywhere.
func (h *connection) namespaceOf(c *cli.Context) string {
	if c.Bool(flagAll) {
		return metav1.NamespaceAll
	}
	return h.namespace
}

func listClusters(c *cli.Context, s Streams) error {
	hub, err := connect(c)
	if err != nil {
		return err
	}
	namespace := hub.namespaceOf(c)
	list, err := hub.Fleet.Clusters(namespace).List(c.Context, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Clusters: %w", admin.Explain(err, namespace))
	}
	clusters := make([]view.Cluster, 0, len(list.Items))
	for i := range list.Items {
		clusters = append(clusters, view.OfCluster(&list.Items[i]))
	}
	if done, err := encode(s.Out, c.String(flagOutput), clusters); done {
		return err
	}
	if len(clusters) == 0 {
		fmt.Fprintln(s.Err, "No clusters "+where(namespace)+".")
		return nil
	}
	clusterTable(s.Out, clusters, c.String(flagOutput) == formatWide, s.Now())
	return nil
}

func where(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return "in any namespace"
	}
	return "in namespace " + namespace + " (-A for all)"
}

func clusterTable(w io.Writer, clusters []view.Cluster, wide bool, now time.Time) {
	header := []string{"NAMESPACE", "NAME", "WAY IN", "STATE", "REASON", "BUNDLES", "LAST SEEN"}
	if wide {
		header = append(header, "KUBERNETES", "AGENT", "MESSAGE")
	}
	rows := make([][]string, 0, len(clusters))
	for _, v := range clusters {
		row := []string{v.Namespace, v.Name, v.WayIn, v.State, v.Reason, v.Bundles, view.Ago(v.LastSeen, now)}
		if wide {
			row = append(row, v.Kubernetes, v.Agent, v.Message)
		}
		rows = append(rows, row)
	}
	view.Table(w, header, rows)
}
