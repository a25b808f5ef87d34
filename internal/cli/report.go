package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/report"
	"github.com/muster-fleet/muster/internal/view"
	"github.com/muster-fleet/muster/pkg/version"
)

const flagFile = "file"

// createFile creates a file that does not exist yet, and removes it again if it cannot be written.
func createFile(name string, write func(io.Writer) error) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(write(file), file.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

func reportCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "write a support bundle, a zip file without the values of Secrets",
		ArgsUsage: "[CLUSTER]",
		Description: `The bundle contains the objects and events of the namespace and of the hub, the log and metrics of the hub, and the result of muster
check. With CLUSTER, it also contains the result of muster describe and the objects of the cluster namespace, and with
--member-kubeconfig those of the agent. Of each
Secret, it contains the keys and the sizes of the values. The values, tokens, private keys, the content of Bundles and the differences of
deployed objects are removed from all files. The file report.json lists what was removed, and which parts could not be collected; the other parts are collected nevertheless.
Read the bundle before you send it to anybody.`,
		Flags: append(append(hubFlags(), memberFlags("the member of CLUSTER")...),
			&cli.StringFlag{Name: flagFile, Aliases: []string{"f"}, Usage: "`FILE` to write; default: muster-report-TIME.zip"},
			&cli.StringFlag{Name: flagAgentNamespace, Usage: "`NAMESPACE` of the agent on the member; default: that of the Cluster, or cattle-fleet-system"},
			&cli.StringFlag{Name: flagSystemNamespace, Usage: "`NAMESPACE` of the hub; default: cattle-fleet-system"},
			timeoutFlag("to collect", 5*time.Minute),
		),
		Action: func(c *cli.Context) error {
			in, err := checkInputs(c)
			if err != nil {
				return err
			}
			in.Version, in.Now = version.Version, s.Now
			folder := "muster-report-" + s.Now().UTC().Format("20060102T150405Z")
			name := c.String(flagFile)
			if name == "" {
				name = folder + ".zip"
			}
			ctx, cancel := context.WithTimeout(c.Context, c.Duration(flagTimeout))
			defer cancel()
			var overview report.Overview
			err = createFile(name, func(file io.Writer) (err error) {
				overview, err = report.Write(ctx, file, folder, in)
				return err
			})
			if err != nil {
				return fmt.Errorf("the report: %w", err)
			}
			for _, part := range overview.Failed {
				fmt.Fprintf(s.Err, "not collected: %s: %s\n", view.Printable(part.Part), view.Printable(part.Error))
			}
			fmt.Fprintf(s.Out, "The report is in %s: %d values were removed, %d parts could not be collected. Read it before you send it.\n",
				name, len(overview.Redacted), len(overview.Failed))
			return nil
		},
	}
}
