package cli

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// helloCommand is the program of the workload that the demo deploys: it stands for whatever runs for a long time.
func helloCommand(s Streams) *cli.Command {
	return &cli.Command{
		Name:   "hello",
		Usage:  "say hello and stay until terminated",
		Hidden: true,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			fmt.Fprintln(s.Out, "Hello.")
			<-c.Context.Done()
			return nil
		},
	}
}
