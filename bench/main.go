// Command bench measures a hub.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/muster-fleet/muster/internal/bench"
)

func main() {
	o := bench.Options{Log: os.Stderr}
	flag.StringVar(&o.Hub, "hub", "bin/fleetcontroller", "the hub's program")
	flag.IntVar(&o.Storm, "storm", 0, "agents that register at once")
	flag.IntVar(&o.InFlight, "in-flight", 0, "how many of them at a time")
	flag.IntVar(&o.Imports, "imports", 0, "clusters the hub imports at once")
	only := flag.String("only", "", "parts, with commas")
	flag.Parse()
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	results, err := bench.Run(ctx, o)
	bench.Table(os.Stdout, results)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
