package cli

import (
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/ui"
)

const flagAddress = "address"

func uiCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "ui",
		Usage: "show the clusters in a browser on this machine",
		Description: `The command prints the address of a page, and serves the page until Ctrl-C. The page is read-only, shows only objects that your
kubeconfig may read, and never reads a Secret. The address contains a secret that changes at each start; only a browser that has opened
this address can show the page.`,
		Flags: append(slices.DeleteFunc(hubFlags(), func(f cli.Flag) bool { return slices.Contains(f.Names(), flagNamespace) }),
			&cli.StringFlag{Name: flagNamespace, Aliases: []string{"n"}, Usage: "show only the clusters of this `NAMESPACE`; default: all namespaces"},
			&cli.StringFlag{Name: flagAddress, Value: "127.0.0.1:0", Usage: "`ADDRESS` to serve at: 127.0.0.1:PORT or [::1]:PORT; port 0 is a free one"},
		),
		Action: withoutArguments(func(c *cli.Context) error {
			to, err := given(c.Lineage())
			if err != nil {
				return err
			}
			config, _, err := hubConfig(to)
			if err != nil {
				return err
			}
			return ui.Serve(c.Context, ui.Options{
				Config: config, Namespace: *to.Namespace, Address: c.String(flagAddress),
				OnReady: func(url string) {
					fmt.Fprintln(s.Out, url)
					fmt.Fprintln(s.Err, "Open this address in a browser on this machine. Ctrl-C ends the page.")
				},
			})
		}),
	}
}
