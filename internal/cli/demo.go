package cli

import (
	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/demo"
)

func demoCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "start a hub and two members on this machine, and register clusters in all three ways",
		Description: `It needs no root, no container engine and no registry. On a terminal it stays up until Ctrl-C; otherwise, or with
DEMO_EXIT=1, it checks itself, tears everything down and exits. In a clone, scripts/demo builds what it needs and runs it.`,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			quietLog()
			return demo.Run(c.Context, demo.Options{
				Out:      s.Out,
				Terminal: s.Terminal && s.Env("TERM") != "dumb" && s.Env("NO_COLOR") == "",
				Stay:     s.Terminal && s.Env("DEMO_EXIT") == "",
			})
		},
	}
}
