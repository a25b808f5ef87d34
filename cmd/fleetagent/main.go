// Fleetagent is the agent of a member cluster: it registers with the hub and keeps it informed.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/muster-fleet/muster/pkg/agent"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newApp(agent.Run).RunContext(ctx, os.Args); err != nil {
		logrus.Error(err)
		return 1
	}
	return 0
}
