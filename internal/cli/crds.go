package cli

import (
	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/pkg/crds"
)

func crdsCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:        "crds",
		Usage:       "print the CustomResourceDefinitions as YAML",
		Description: "muster crds | kubectl apply --server-side -f -",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			_, err := s.Out.Write(crds.YAML())
			return err
		},
	}
}
