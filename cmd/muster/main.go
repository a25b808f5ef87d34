// Muster is the command-line tool for operators of a hub.
package main

import (
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/term"

	"github.com/muster-fleet/muster/internal/cli"
	"github.com/muster-fleet/muster/internal/launch"
)

func main() {
	app := cli.App(cli.Streams{
		Out:      os.Stdout,
		Err:      os.Stderr,
		In:       os.Stdin,
		Terminal: term.IsTerminal(int(os.Stdout.Fd())),
		Env:      os.Getenv,
		Now:      time.Now,
	})
	logrus.SetFormatter(cli.PlainLog{})
	os.Args = cli.FlagsFirst(app, os.Args)
	os.Exit(launch.Main(app))
}
