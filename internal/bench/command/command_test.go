package command

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// console runs the program with given figures instead of measured ones.
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
	app := (&program{
		out: &c.out, err: &c.err, limits: []byte(limits),
		measure: func(_ context.Context, o bench.Options) ([]figures.Figure, error) {
			c.asked = o
			return c.measured, c.fails
		},
		now: func() time.Time {
			c.hour++
			return time.Date(2026, 11, 21, c.hour, 0, 0, 0, time.UTC)
		},
	}).app()
	app.ExitErrHandler = func(*cli.Context, error) {}
	return app.RunContext(c.t.Context(), append([]string{"bench", arguments[0], "--results", c.results}, arguments[1:]...))
}

func count(row string, value float64) figures.Figure { return figures.Counted(row, "", value) }

func TestRun(t *testing.T) {
	c := newConsole(t, count("storm/writes", 16))
	c.fails = errors.New("the API server exited")
	require.ErrorIs(t, c.run("run"), c.fails)
	assert.Contains(t, c.out.String(), "storm/writes", "figures until the failure are printed")
	assert.NoDirExists(t, c.results, "and not kept")

	c.fails = nil
	require.NoError(t, c.run("run"), "a missed target is not an error")
	assert.Regexp(t, `storm/writes +16 +<= 15 +NO`, c.out.String())
	all, err := figures.Records(c.results)
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Equal(t, c.measured, all[0].Figures)
	assert.Contains(t, all[0].Machine, "CPUs")
	assert.Contains(t, all[0].Go, "go")
	assert.Equal(t, c.asked.Settings(), all[0].Settings)
}

func TestCompare(t *testing.T) {
	c := newConsole(t, count("storm/writes", 14), count("storm/failed", 0))
	require.ErrorContains(t, c.run("compare"), "no record")
	require.NoError(t, c.run("run"))
	require.NoError(t, c.run("compare"))

	c.measured = []figures.Figure{count("storm/writes", 16), count("storm/failed", 0)}
	require.EqualError(t, c.run("compare"), "worse than before: storm/writes")
	assert.Contains(t, c.out.String(), "2026-11-21T01:00:00Z")
	require.ErrorContains(t, c.run("compare", "--clusters", "77"), "no record", "another number of clusters")
	all, err := figures.Records(c.results)
	require.NoError(t, err)
	assert.Len(t, all, 1, "a comparison is not kept")
}

func TestFleet(t *testing.T) {
	c := newConsole(t, count("fleet/lease/1000/memory", 100), count("fleet/lease/3000/memory", 300))
	require.NoError(t, c.run("fleet"))
	assert.Equal(t, []string{"fleet-lease", "fleet-status"}, c.asked.Parts)
	assert.Equal(t, []int{1000, 10000, 30000}, c.asked.Clusters)
	const predicted = "| memory of the hub, peak | 100 MiB | 300 MiB |  | 10,000 MiB |"
	assert.Contains(t, c.out.String(), predicted)
	assert.NotContains(t, c.out.String(), "Heartbeats to the status", "they were not measured")

	c.measured = []figures.Figure{count("storm/writes", 14)}
	require.NoError(t, c.run("run"))
	require.NoError(t, c.run("fleet-table"))
	assert.Contains(t, c.out.String(), predicted, "the newest record that has a fleet")
	assert.Contains(t, c.out.String(), "Run `2026-11-21T010000Z`")
}

// docs/scaling.md has the tables of the kept figures.
func TestFleetTableInTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/scaling.md")
	require.NoError(t, err)
	c := newConsole(t)
	c.results = "../../../bench/results"
	require.NoError(t, c.run("fleet-table"))
	for block := range strings.SplitSeq(strings.TrimSpace(c.out.String()), "\n\n") {
		isInPage := strings.HasPrefix(block, "#") || strings.Contains(string(page), strings.TrimSuffix(block, "."))
		assert.True(t, isInPage, "docs/scaling.md does not contain the output of `bench fleet-table`:\n%s", block)
	}
	assert.Contains(t, c.out.String(), "| one unit of work |")
}

func TestSmall(t *testing.T) {
	for name, test := range map[string]struct {
		measured []figures.Figure
		problem  string
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
			assert.NoDirExists(t, c.results, "it is not kept")
			if test.problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.problem)
		})
	}
}

func TestOptions(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		check     func(*testing.T, bench.Options)
	}{
		"run":      {[]string{"run"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []int{100, 300, 1000}, o.Clusters) }},
		"clusters": {[]string{"run", "--clusters", "50"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []int{50}, o.Clusters) }},
		"sizes":    {[]string{"scale", "--sizes", "10, 20"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []int{10, 20}, o.Clusters) }},
		"hour":     {[]string{"scale", "--hour", "1m"}, func(t *testing.T, o bench.Options) { assert.Equal(t, time.Minute, o.Hour) }},
		"parts":    {[]string{"run", "--parts", "imports,growth"}, func(t *testing.T, o bench.Options) { assert.Equal(t, []string{"imports", "growth"}, o.Parts) }},
		"hub":      {[]string{"run", "--hub", "h"}, func(t *testing.T, o bench.Options) { assert.Equal(t, "h", o.Hub) }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConsole(t)
			require.NoError(t, c.run(test.arguments...))
			test.check(t, c.asked)
		})
	}
	for problem, arguments := range map[string][]string{
		"many":    {"run", "--sizes", "10,many"},
		"nothing": {"run", "--nothing"},
	} {
		require.ErrorContains(t, newConsole(t).run(arguments...), problem)
	}
}

func TestVersion(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hub")
	of := func(script string) string {
		require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o700))
		return version(file)
	}
	assert.Equal(t, "v1.2-3-gabc-dirty", of("echo hub version v1.2-3-gabc-dirty"))
	assert.Empty(t, of("true"))
	assert.Empty(t, of("echo v1; exit 1"))
	assert.Empty(t, version("/nowhere"))
}
