// Package command is the command line of the bench.
package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/bench"
	"github.com/muster-fleet/muster/internal/bench/capacity"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/launch"
)

// program has the inputs and outputs of all commands.
type program struct {
	out, err io.Writer // figures and progress
	limits   []byte    // the content of bench/budgets.yaml
	measure  func(context.Context, bench.Options) ([]figures.Figure, error)
	now      func() time.Time
}

// App returns the command line of the bench. It writes figures to out and progress to err.
func App(out, err io.Writer, limits []byte) *cli.App {
	return (&program{out: out, err: err, limits: limits, measure: bench.Run, now: time.Now}).app()
}

func (p *program) app() *cli.App {
	app := launch.App("bench", "measures a hub from outside")
	app.Writer = p.out
	app.Commands = []*cli.Command{
		p.command("run", "measure everything, check the targets, and keep the figures", p.run, whole),
		p.command("compare", "measure everything and compare it with the last runs that have the same sizes", p.compare, whole),
		p.command("small", "count requests, in some minutes, and check the budgets", p.small, func(int) bench.Options {
			return bench.Options{Sizes: bench.Small(), Parts: []string{"small", "clusternet", "imports", "takeover"}}
		}),
		p.command("scale", "grow a hub, then simulate an hour of heartbeats, an outage and deletions, and keep the figures", p.run, func(clusters int) bench.Options {
			return bench.Options{Sizes: bench.Whole(clusters), Parts: []string{"day"}}
		}),
		p.command("fleet", "measure what each cluster costs at several sizes of a fleet, keep the figures, and predict the costs of a larger fleet", p.fleet, func(clusters int) bench.Options {
			o := bench.Options{Sizes: bench.Whole(clusters), Parts: []string{"fleet-lease", "fleet-status"}}
			o.Clusters = []int{1000, 10000, 30000}
			return o
		}),
		{Name: "fleet-table", Usage: "print the tables of docs/scaling.md: the kept figures of fleets, and their predictions", Flags: []cli.Flag{resultsFlag()}, Action: p.fleetTable},
	}
	for _, c := range app.Commands {
		c.OnUsageError = app.OnUsageError
	}
	return app
}

func whole(clusters int) bench.Options {
	return bench.Options{Sizes: bench.Whole(clusters), Parts: bench.WholeParts()}
}

func (p *program) command(name, usage string, action func(*cli.Context, bench.Options) error, defaults func(clusters int) bench.Options) *cli.Command {
	return &cli.Command{Name: name, Usage: usage, Flags: flags(), Action: func(c *cli.Context) error {
		o := options(c, defaults)
		o.Log = p.err
		return action(c, o)
	}}
}

func resultsFlag() cli.Flag {
	return &cli.StringFlag{Name: "results", Value: "bench/results", Usage: "`DIRECTORY` with the kept figures; empty: keep none"}
}

func flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "hub", Value: "bin/fleetcontroller", Usage: "`PROGRAM` of the hub to start"},
		&cli.StringFlag{Name: "agent", Usage: "`PROGRAM` of the agent of part deployments; default: fleetagent in the directory of the hub"},
		&cli.IntFlag{Name: "clusters", Value: 1000, EnvVars: []string{"BENCH_CLUSTERS"}, Usage: "final `NUMBER` of clusters"},
		&cli.IntSliceFlag{Name: "sizes", EnvVars: []string{"BENCH_SIZES"}, Usage: "`NUMBERS` of clusters at which growth is measured, separated by commas; default: 100, 300 and --clusters"},
		&cli.IntFlag{Name: "storm", EnvVars: []string{"BENCH_STORM"}, Usage: "`NUMBER` of agents that register at once; default: 1000"},
		&cli.IntFlag{Name: "in-flight", EnvVars: []string{"BENCH_IN_FLIGHT"}, Usage: "`NUMBER` of concurrent requests of agents; default: 200"},
		&cli.IntFlag{Name: "imports", EnvVars: []string{"BENCH_IMPORTS"}, Usage: "`NUMBER` of clusters that are imported at once; default: 200"},
		&cli.DurationFlag{Name: "hour", EnvVars: []string{"BENCH_HOUR"}, Usage: "`DURATION` into which an hour of heartbeats is compressed; default: 5m"},
		&cli.DurationFlag{Name: "spread", EnvVars: []string{"BENCH_SPREAD"}, Usage: "`DURATION` over which agents come back after an outage; default: 5m"},
		&cli.StringSliceFlag{Name: "parts", EnvVars: []string{"BENCH_PARTS"}, Usage: "`PARTS` to measure, separated by commas; default: the parts of the command"},
		resultsFlag(),
	}
}

// options combines the flags with the defaults of a command.
func options(c *cli.Context, defaults func(clusters int) bench.Options) bench.Options {
	o := defaults(c.Int("clusters"))
	o.Hub = c.String("hub")
	o.Agent = cmp.Or(c.String("agent"), filepath.Join(filepath.Dir(o.Hub), "fleetagent"))
	for name, value := range map[string]*int{"storm": &o.Storm, "in-flight": &o.InFlight, "imports": &o.Imports} {
		if n := c.Int(name); n > 0 {
			*value = n
		}
	}
	for name, value := range map[string]*time.Duration{"hour": &o.Hour, "spread": &o.Spread} {
		if d := c.Duration(name); d > 0 {
			*value = d
		}
	}
	if parts := c.StringSlice("parts"); len(parts) > 0 {
		o.Parts = parts
	}
	if sizes := c.IntSlice("sizes"); len(sizes) > 0 {
		o.Clusters = sizes
	}
	return o
}

// run measures, prints the figures with their targets, and keeps them.
func (p *program) run(c *cli.Context, o bench.Options) error {
	limits, err := figures.ParseLimits(p.limits)
	if err != nil {
		return err
	}
	r := figures.Record{Time: p.now().UTC().Truncate(time.Second), Settings: o.Settings(), Commit: version(o.Hub), Machine: machine(), Go: runtime.Version()}
	r.Figures, err = p.measure(c.Context, o)
	if failed := figures.Table(p.out, r.Figures, limits.Targets); failed != nil {
		return failed
	}
	if err != nil || c.String("results") == "" {
		return err
	}
	file, err := figures.Keep(c.String("results"), r)
	if err == nil {
		fmt.Fprintln(p.err, "bench: kept as", file)
	}
	return err
}

// compare measures and compares, and keeps nothing.
func (p *program) compare(c *cli.Context, o bench.Options) error {
	before, records, err := figures.Baseline(c.String("results"), o.Settings())
	if err != nil {
		return err
	}
	now, err := p.measure(c.Context, o)
	if err != nil {
		return err
	}
	changes := figures.Compare(before, now)
	for _, r := range records {
		fmt.Fprintf(p.out, "compared with the run of %s, commit %s\n", r.Time.Format(time.RFC3339), r.Commit)
	}
	if err := figures.ChangeTable(p.out, changes); err != nil {
		return err
	}
	var worse []string
	for _, change := range changes {
		if change.Worse {
			worse = append(worse, change.Row)
		}
	}
	if len(worse) > 0 {
		return fmt.Errorf("worse than before: %s", strings.Join(worse, ", "))
	}
	return nil
}

// small measures and checks the budgets.
func (p *program) small(c *cli.Context, o bench.Options) error {
	limits, err := figures.ParseLimits(p.limits)
	if err != nil {
		return err
	}
	measured, err := p.measure(c.Context, o)
	if failed := figures.Table(p.out, measured, limits.Budgets); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	missed, unmeasured := limits.Budgets.Check(measured)
	var problems []string
	for _, f := range missed {
		limit, _ := limits.Budgets.Of(f.Row)
		problems = append(problems, fmt.Sprintf("%s is %g and must be %s", f.Row, f.Value, limit))
	}
	for _, row := range unmeasured {
		problems = append(problems, row+" has a budget and was not measured")
	}
	if len(problems) > 0 {
		return fmt.Errorf("over budget: %s", strings.Join(problems, "; "))
	}
	return nil
}

// fleet measures and keeps the figures, and prints their predictions.
func (p *program) fleet(c *cli.Context, o bench.Options) error {
	if err := p.run(c, o); err != nil || c.String("results") == "" {
		return err
	}
	return p.fleetTable(c)
}

// fleetKinds are the kinds of agents of a fleet with their headings.
var fleetKinds = []struct{ kind, heading string }{
	{"lease", "Heartbeats to Leases"},
	{"status", "Heartbeats to the status of the Clusters, all in one workspace"},
}

// fleetTable prints the tables of the newest record of each kind of agents.
func (p *program) fleetTable(c *cli.Context) error {
	all, err := figures.Records(c.String("results"))
	if err != nil {
		return err
	}
	const predicted = 100000
	intervals, sizes := []float64{60, 900}, []int{10000, 30000, predicted}
	const gibibyte = 1 << 10 // MiB
	limits := capacity.Bounds{EtcdMiB: 8 * gibibyte, HubMiB: 2 * gibibyte, APIServerMiB: 16 * gibibyte, APIServerCores: 8}
	for _, k := range fleetKinds {
		var model capacity.CostModel
		var record figures.Record
		for _, r := range all { // the oldest first
			if f := capacity.CostModelOf(r.Figures, k.kind); len(f.Sizes()) > 0 {
				model, record = f, r
			}
		}
		if len(model.Sizes()) == 0 {
			continue
		}
		fmt.Fprintf(p.out, "### %s\n\nRun `%s`.\n\n", k.heading, record.Time.Format("2006-01-02T150405Z"))
		if err := model.WriteCosts(p.out, predicted); err != nil {
			return err
		}
		fmt.Fprintln(p.out)
		if err := model.WriteNeeds(p.out, intervals, sizes...); err != nil {
			return err
		}
		for _, limits.Interval = range intervals {
			fmt.Fprintln(p.out)
			if err := model.WriteEnds(p.out, limits); err != nil {
				return err
			}
		}
		fmt.Fprintln(p.out)
	}
	return nil
}

// version returns the last word that a program prints for --version, or "" if the program fails.
func version(program string) string {
	out, err := exec.Command(program, "--version").Output()
	words := strings.Fields(string(out))
	if err != nil || len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

// machine describes the platform and the number of CPUs, and, if the system provides them, the model of the CPUs and the memory.
func machine() string {
	text := fmt.Sprintf("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return text
	}
	if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" {
		text += " " + cpus[0].ModelName
	}
	if memory, err := fs.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		text += fmt.Sprintf(", %d GiB", *memory.MemTotalBytes>>30)
	}
	return text
}
