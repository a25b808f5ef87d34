package command

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/bench"
)

const resultsName = "results"

func resultsFlag() cli.Flag {
	return &cli.StringFlag{Name: resultsName, Value: "bench/results", Usage: "`FOLDER` with the figures of all runs that were kept; empty: keep none"}
}

func flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "hub", Value: "bin/fleetcontroller", Usage: "`PROGRAM` of the hub to start"},
		&cli.StringSliceFlag{Name: "hub-arg", Usage: "further `ARGUMENT` of it"},
		&cli.StringFlag{Name: "kubeconfig", Usage: "`FILE` for the API server of a hub that runs already, which is measured instead; it is left full of clusters"},
		&cli.StringFlag{Name: "pid", Usage: "`PIDS` of that hub's processes, with commas"},
		&cli.StringFlag{Name: "audit-log", Usage: "`FILE` that that API server notes every request in, once, at level Metadata"},
		&cli.StringFlag{Name: "restart", Usage: "shell `COMMAND` that restarts that hub and prints the new pids; without one restarts are not measured"},
		&cli.StringSliceFlag{Name: "user-agent", Usage: "`BEGINNING` of the hub's User-Agent; default: fleetcontroller"},
		&cli.IntFlag{Name: "clusters", EnvVars: []string{"BENCH_CLUSTERS"}, Usage: "`NUMBER` of clusters in the end; default: 1000"},
		&cli.StringFlag{Name: "sizes", EnvVars: []string{"BENCH_SIZES"}, Usage: "`NUMBERS` of clusters at which growth is measured, with commas, instead of 100, 300 and --clusters"},
		&cli.IntFlag{Name: "storm", EnvVars: []string{"BENCH_STORM"}, Usage: "`NUMBER` of agents that register at once; default: 1000"},
		&cli.IntFlag{Name: "in-flight", EnvVars: []string{"BENCH_IN_FLIGHT"}, Usage: "`NUMBER` of them at a time; default: 200"},
		&cli.IntFlag{Name: "imports", EnvVars: []string{"BENCH_IMPORTS"}, Usage: "`NUMBER` of clusters that are imported at once; default: 200"},
		&cli.DurationFlag{Name: "hour", EnvVars: []string{"BENCH_HOUR"}, Usage: "`DURATION` of an hour of heartbeats; default: 5m"},
		&cli.DurationFlag{Name: "spread", EnvVars: []string{"BENCH_SPREAD"}, Usage: "`DURATION` that agents take to come back after an outage; default: 5m"},
		&cli.StringFlag{Name: "replicas", EnvVars: []string{"BENCH_REPLICAS"}, Usage: "`NUMBERS` of processes that are measured together, with commas; default: 1,2,4"},
		&cli.StringFlag{Name: "parts", EnvVars: []string{"BENCH_PARTS"}, Usage: "`PARTS` to measure, with commas; default: those of the command"},
		resultsFlag(),
	}
}

// The commands differ in what they measure unless they are told otherwise.

func whole(clusters int) bench.Options { return bench.Options{Sizes: bench.Whole(clusters)} }

func small(int) bench.Options {
	return bench.Options{Sizes: bench.Small(), Parts: []string{"small", "imports"}}
}

func scale(clusters int) bench.Options {
	return bench.Options{Sizes: bench.Whole(clusters), Parts: []string{"day"}}
}

func replicas(clusters int) bench.Options {
	return bench.Options{Sizes: bench.Whole(clusters), Parts: []string{"replicas"}}
}

// options turns what was said into what is meant.
func options(c *cli.Context, defaults func(clusters int) bench.Options) (o bench.Options, err error) {
	const clusters = 1000
	o = defaults(clusters)
	if n := c.Int("clusters"); n > 0 {
		o = defaults(n)
	} else if n < 0 {
		return o, fmt.Errorf("--clusters is %d: it must not be negative", n)
	}
	o.Hub, o.HubArgs, o.UserAgents = c.String("hub"), c.StringSlice("hub-arg"), c.StringSlice("user-agent")
	for name, value := range map[string]*int{"storm": &o.Storm, "in-flight": &o.InFlight, "imports": &o.Imports} {
		if n := c.Int(name); n > 0 {
			*value = n
		}
	}
	if d := c.Duration("hour"); d > 0 {
		o.Hour = d
	}
	if d := c.Duration("spread"); d > 0 {
		o.Spread = d
	}
	if parts := words(c.String("parts")); len(parts) > 0 {
		o.Parts = parts
	}
	if err := numbers(c, "sizes", &o.Clusters); err != nil {
		return o, err
	}
	if err := numbers(c, "replicas", &o.Replicas); err != nil {
		return o, err
	}
	o.Named, err = named(c)
	return o, err
}

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// numbers replaces value by what a flag lists, if anything.
func numbers(c *cli.Context, flag string, value *[]int) error {
	var all []int
	for _, word := range words(c.String(flag)) {
		n, err := strconv.Atoi(word)
		if err != nil || n <= 0 {
			return fmt.Errorf("--%s: %q must be a number above 0", flag, word)
		}
		all = append(all, n)
	}
	if len(all) > 0 {
		*value = all
	}
	return nil
}

// named is the hub that runs already, nil where none was named.
func named(c *cli.Context) (*bench.Named, error) {
	if c.String("kubeconfig") == "" && c.String("pid") == "" && c.String("audit-log") == "" {
		return nil, nil
	}
	n := &bench.Named{Kubeconfig: c.String("kubeconfig"), AuditLog: c.String("audit-log"), Restart: c.String("restart")}
	if c.String("pid") == "" {
		return n, nil // what is missing is told when all is known
	}
	var err error
	if n.Pids, err = bench.ParsePids(c.String("pid")); err != nil {
		return nil, fmt.Errorf("--pid: %w", err)
	}
	return n, nil
}
