// Package command is the command line of the bench.
package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/bench"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/launch"
)

// Streams are where the output goes: figures to Out, progress to Err.
type Streams struct {
	Out, Err io.Writer
}

// App is the program. The limits are the text of the file that has them all.
func App(s Streams, limits []byte) *cli.App {
	return app(&program{Streams: s, limits: limits, measure: bench.Run, now: time.Now})
}

func app(p *program) *cli.App {
	app := launch.App("bench", "measures a hub from outside")
	app.Writer = p.Out
	app.Commands = []*cli.Command{
		p.command("run", "measures everything, holds it against the targets, and keeps it", p.run, whole),
		p.command("compare", "measures everything and holds it against the last run kept with the same settings", p.compare, whole),
		p.command("small", "counts what can be counted within a minute, and holds it against the budgets", p.small, small),
		p.command("scale", "grows a hub, gives it an hour of heartbeats, an outage and deletions, and keeps the figures", p.run, scale),
		p.command("replicas", "measures several processes of one hub, and keeps the figures", p.run, replicas),
		{Name: "charts", Usage: "prints the curves of the last run kept that has some, for hack/curves", Flags: []cli.Flag{resultsFlag()}, Action: p.charts},
	}
	for _, c := range app.Commands {
		c.OnUsageError = app.OnUsageError
	}
	return app
}

// program is what the commands share.
type program struct {
	Streams
	limits  []byte
	measure func(context.Context, bench.Options) ([]figures.Figure, error)
	now     func() time.Time
}

// action is a command that measures.
type action func(*cli.Context, bench.Options) error

func (p *program) command(name, usage string, do action, defaults func(clusters int) bench.Options) *cli.Command {
	return &cli.Command{Name: name, Usage: usage, Flags: flags(), Action: func(c *cli.Context) error {
		o, err := options(c, defaults)
		if err != nil {
			return err
		}
		o.Log = p.Err
		return do(c, o)
	}}
}

// run measures, shows, and keeps what was measured.
func (p *program) run(c *cli.Context, o bench.Options) error {
	limits, err := figures.ParseLimits(p.limits)
	if err != nil {
		return err
	}
	r, err := p.record(c.Context, o)
	if failed := figures.Table(p.Out, r.Figures, limits.Targets); failed != nil {
		return failed
	}
	if err != nil || c.String(resultsName) == "" {
		return err
	}
	file, err := figures.Keep(c.String(resultsName), r)
	if err == nil {
		fmt.Fprintln(p.Err, "bench: kept as", file)
	}
	return err
}

func (p *program) record(ctx context.Context, o bench.Options) (figures.Record, error) {
	r := figures.Record{Time: p.now().UTC().Truncate(time.Second), Settings: o.Settings()}
	r.Machine, r.Go = machine(), goVersion()
	if o.Named == nil {
		r.Commit = version(o.Hub)
	}
	var err error
	r.Figures, err = p.measure(ctx, o)
	return r, err
}

// compare measures and keeps nothing, so that one can try as often as one likes.
func (p *program) compare(c *cli.Context, o bench.Options) error {
	last, err := figures.Last(c.String(resultsName), o.Settings())
	if err != nil {
		return err
	}
	now, err := p.measure(c.Context, o)
	if err != nil {
		return err
	}
	changes := figures.Compare(last.Figures, now)
	fmt.Fprintf(p.Out, "held against the run of %s, commit %s\n", last.Time.Format(time.RFC3339), last.Commit)
	if err := figures.ChangeTable(p.Out, changes); err != nil {
		return err
	}
	var rows []string
	for _, bad := range figures.Worse(changes) {
		rows = append(rows, bad.Row)
	}
	if len(rows) > 0 {
		return fmt.Errorf("worse than the run before: %s", strings.Join(rows, ", "))
	}
	return nil
}

// small measures what has budgets.
func (p *program) small(c *cli.Context, o bench.Options) error {
	limits, err := figures.ParseLimits(p.limits)
	if err != nil {
		return err
	}
	measured, err := p.measure(c.Context, o)
	if failed := figures.Table(p.Out, measured, limits.Budgets); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	broken, unmeasured := limits.Budgets.Judge(measured)
	var problems []string
	for _, f := range broken {
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

func (p *program) charts(c *cli.Context) error {
	all, err := figures.All(c.String(resultsName))
	if err != nil {
		return err
	}
	// The longest curves are those of the run that had the most clusters; of two the newer one's.
	var best []figures.Chart
	for _, r := range all {
		if charts := figures.Charts(r.Figures); longest(charts) >= longest(best) && len(charts) > 0 {
			best = charts
		}
	}
	if len(best) == 0 {
		return fmt.Errorf("no run in %s has curves", c.String(resultsName))
	}
	encoder := json.NewEncoder(p.Out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(best)
}

// longest is the largest number of clusters of a chart.
func longest(charts []figures.Chart) (most float64) {
	for _, chart := range charts {
		for _, line := range chart.Lines {
			for _, point := range line.Points {
				most = max(most, point.X)
			}
		}
	}
	return most
}
