package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/urfave/cli/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
)

const flagGranted = "granted"

func requestsCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "requests",
		Usage: "list registration requests that are waiting or were refused, and why",
		Flags: append(hubFlags(), allFlag(),
			&cli.BoolFlag{Name: flagGranted, Usage: "include those that were granted"},
			outputFlag(formatWide, formatJSON, formatYAML)),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			return listRequests(c, s)
		},
	}
}

func listRequests(c *cli.Context, s Streams) error {
	hub, err := connect(c)
	if err != nil {
		return err
	}
	namespace := hub.namespaceOf(c)
	list, err := hub.Fleet.ClusterRegistrations(namespace).List(c.Context, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ClusterRegistrations: %w", admin.Explain(err, namespace))
	}
	requests := make([]view.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, view.OfRequest(&list.Items[i]))
	}
	if !c.Bool(flagGranted) {
		requests = slices.DeleteFunc(requests, func(v view.Request) bool { return v.State == view.StateGranted })
	}
	if done, err := encode(s.Out, c.String(flagOutput), requests); done {
		return err
	}
	if len(requests) == 0 {
		fmt.Fprintln(s.Err, "No requests wait or were refused "+where(namespace)+".")
		return nil
	}
	requestTable(s.Out, requests, c.String(flagOutput) == formatWide, s.Now())
	return nil
}

// mostOfAnIdentity is as much of a clientID as a table shows.
const mostOfAnIdentity = 40

func requestTable(w io.Writer, requests []view.Request, wide bool, now time.Time) {
	header := []string{"NAMESPACE", "NAME", "CLUSTER", "TOKEN", "STATE", "REASON", "CREATED"}
	if wide {
		header = append(header, "CLIENT ID", "CREATED BY", "MESSAGE")
	}
	rows := make([][]string, 0, len(requests))
	for _, v := range requests {
		row := []string{v.Namespace, v.Name, v.Cluster, v.Token, v.State, v.Reason, view.Ago(v.Created, now)}
		if wide {
			row = append(row, shortened(v.ClientID, mostOfAnIdentity), v.Creator, v.Message)
		}
		rows = append(rows, row)
	}
	view.Table(w, header, rows)
}

// shortened has at most that many characters.
func shortened(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}
