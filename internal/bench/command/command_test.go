package command

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/bench"
	"github.com/muster-fleet/muster/internal/bench/figures"
)

const limits = `
targets:
  storm/writes: {atMost: 15}
budgets:
  storm/writes: {atMost: 17}
  storm/failed: {atMost: 0}
`

// console runs the program on figures that nobody measured.
type console struct {
	t        *testing.T
	results  string
	measured []figures.Figure
	fails    error
	asked    bench.Options
	out, err bytes.Buffer
	hour     int
}

func newConsole(t *testing.T, measured ...figures.Figure) *console {
	t.Helper()
	return &console{t: t, results: filepath.Join(t.TempDir(), "results"), measured: measured}
}

func (c *console) run(arguments ...string) error {
	c.t.Helper()
	c.out.Reset()
	app := app(&program{
		Streams: Streams{Out: &c.out, Err: &c.err}, limits: []byte(limits),
		measure: func(_ context.Context, o bench.Options) ([]figures.Figure, error) {
			c.asked = o
			return c.measured, c.fails
		},
		now: func() time.Time {
			c.hour++
			return time.Date(2026, 11, 21, c.hour, 0, 0, 0, time.UTC)
		},
	})
	app.ExitErrHandler = func(*cli.Context, error) {}
	return app.RunContext(c.t.Context(), append([]string{"bench", arguments[0], "--results", c.results}, arguments[1:]...))
}

func count(row string, value float64) figures.Figure {
	return figures.Figure{Row: row, Value: value, Kind: figures.Count}
}

func TestARunIsShownAndKept(t *testing.T) {
	c := newConsole(t, count("storm/writes", 16))
	require.NoError(t, c.run("run"), "a target that is missed is told, and no error")
	assert.Regexp(t, `storm/writes +16 +<= 15 +NO`, c.out.String())
	all, err := figures.All(c.results)
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Equal(t, c.measured, all[0].Figures)
	assert.NotEmpty(t, all[0].Machine)
	assert.NotEmpty(t, all[0].Go)
	assert.Equal(t, c.asked.Settings(), all[0].Settings)
}

func TestARunThatFailsShowsWhatItHasAndKeepsNothing(t *testing.T) {
	c := newConsole(t, count("storm/writes", 14))
	c.fails = errors.New("the API server is gone")
	require.ErrorIs(t, c.run("run"), c.fails)
	assert.Contains(t, c.out.String(), "storm/writes")
	assert.NoDirExists(t, c.results)
}

func TestARunIsHeldAgainstTheLastOneWithItsSettings(t *testing.T) {
	c := newConsole(t, count("storm/writes", 14), count("storm/failed", 0))
	require.ErrorContains(t, c.run("compare"), "no record")
	require.NoError(t, c.run("run"))
	require.NoError(t, c.run("compare"))

	c.measured = []figures.Figure{count("storm/writes", 16), count("storm/failed", 0)}
	err := c.run("compare")
	require.ErrorContains(t, err, "worse than the run before: storm/writes")
	assert.NotContains(t, err.Error(), "storm/failed")
	assert.Contains(t, c.out.String(), "2026-11-21T01:00:00Z")
	require.ErrorContains(t, c.run("compare", "--clusters", "77"), "no record", "another number of clusters")
	all, err := figures.All(c.results)
	require.NoError(t, err)
	assert.Len(t, all, 1, "a comparison is not kept")
}

func TestTheSmallRunKeepsToItsBudgets(t *testing.T) {
	for name, test := range map[string]struct {
		measured []figures.Figure
		says     string
	}{
		"within":          {[]figures.Figure{count("storm/writes", 17), count("storm/failed", 0)}, ""},
		"over":            {[]figures.Figure{count("storm/writes", 17.5), count("storm/failed", 0)}, "storm/writes is 17.5 and must be <= 17"},
		"not measured":    {[]figures.Figure{count("storm/writes", 17)}, "storm/failed has a budget and was not measured"},
		"nothing at all":  {nil, "storm/writes has a budget"},
		"over, and fails": {[]figures.Figure{count("storm/writes", 17), count("storm/failed", 1)}, "storm/failed is 1 and must be <= 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConsole(t, test.measured...)
			err := c.run("small")
			if test.says == "" {
				require.NoError(t, err)
				assert.NoDirExists(t, c.results, "it is not kept")
				return
			}
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestWhatIsAskedFor(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		check     func(*testing.T, bench.Options)
	}{
		"everything":   {[]string{"run"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []int{100, 300, 1000}, o.Clusters) }},
		"more of it":   {[]string{"run", "--clusters", "10000"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []int{100, 300, 10000}, o.Clusters) }},
		"less":         {[]string{"run", "--clusters", "50"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []int{50}, o.Clusters) }},
		"other sizes":  {[]string{"scale", "--sizes", "10, 20"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []int{10, 20}, o.Clusters) }},
		"a long story": {[]string{"scale", "--hour", "1m"}, func(t *testing.T, o bench.Options) { assert.Equal(t, time.Minute, o.Hour) }},
		"parts":        {[]string{"run", "--parts", "imports,growth"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []string{"imports", "growth"}, o.Parts) }},
		"processes":    {[]string{"replicas", "--replicas", "3"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []int{3}, o.Replicas) }},
		"a named hub": {[]string{"run", "--kubeconfig", "k", "--pid", "7,8", "--audit-log", "a", "--restart", "r", "--user-agent", "fleet"}, func(t *testing.T, o bench.Options) {
			assert.Equal(t, &bench.Named{Kubeconfig: "k", Pids: []int{7, 8}, AuditLog: "a", Restart: "r"}, o.Named)
			assert.Equal(t, []string{"fleet"}, o.UserAgents)
		}},
		"a hub to start": {[]string{"run", "--hub", "h", "--hub-arg", "--shards=4"}, func(t *testing.T, o bench.Options) {
			assert.Equal(t, "h", o.Hub)
			assert.Equal(t, []string{"--shards=4"}, o.HubArgs)
			assert.Nil(t, o.Named)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConsole(t)
			require.NoError(t, c.run(test.arguments...))
			test.check(t, c.asked)
		})
	}
}

func TestWhatCannotBeMeant(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		says      string
	}{
		"no number of clusters": {[]string{"run", "--clusters", "-1"}, "--clusters is -1"},
		"no size":               {[]string{"run", "--sizes", "10,many"}, `--sizes: "many"`},
		"no process":            {[]string{"run", "--pid", "x"}, `--pid: "x"`},
		"no flag":               {[]string{"run", "--nothing"}, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, newConsole(t).run(test.arguments...), test.says)
		})
	}
}

func TestTheCurvesAreThoseOfTheLargestRun(t *testing.T) {
	c := newConsole(t)
	require.ErrorContains(t, c.run("charts"), "no run")
	memory := func(clusters string, value float64) figures.Figure {
		return figures.Figure{Row: "growth/" + clusters + "/memory", Value: value, Kind: figures.Size}
	}
	c.measured = []figures.Figure{memory("100", 80), memory("10000", 390)}
	require.NoError(t, c.run("run"))
	c.measured = []figures.Figure{memory("100", 80), memory("300", 91)}
	require.NoError(t, c.run("run"))
	c.measured = nil
	require.NoError(t, c.run("run"))
	require.NoError(t, c.run("charts"))
	assert.Contains(t, c.out.String(), `"y": 390`)
}

func TestTheFileOfLimitsIsReadAndItsBudgetsAreNoTighterThanNothing(t *testing.T) {
	data, err := os.ReadFile("../../../bench/budgets.yaml")
	require.NoError(t, err)
	file, err := figures.ParseLimits(data)
	require.NoError(t, err)
	assert.NotEmpty(t, file.Targets)
	assert.NotEmpty(t, file.Budgets)
}
