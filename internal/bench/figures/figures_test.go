package figures

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/testenv/golden"
)

func TestTable(t *testing.T) {
	limits := parsed(t, `{targets: {storm/rate: {atLeast: 48}, storm/writes: {atMost: 15}, storm/failed: {atMost: 0}}}`).Targets
	var out bytes.Buffer
	require.NoError(t, Table(&out, []Figure{
		Rate("storm/rate", "registrations per second", 51.234),
		Counted("storm/writes", "writes per registration", 16.51).WithNote("create roles 3.00"),
		Counted("storm/failed", "failed requests", 0),
		Bytes("storm/memory", "peak memory", 133<<20),
	}, limits))
	golden.Equal(t, "testdata/table.txt", out.String())

	out.Reset()
	require.NoError(t, ChangeTable(&out, []Change{
		{Row: "storm/writes", Before: 15, Now: 16.51, Worse: true}, {Row: "storm/memory", Before: 133.1, Now: 98, Unit: "MiB"},
	}))
	golden.Equal(t, "testdata/changes.txt", out.String())

	require.ErrorContains(t, Table(failing{}, []Figure{{Row: "a", Note: "n"}}, nil), "disk full")
	require.ErrorContains(t, ChangeTable(failing{}, nil), "disk full")
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestUnits(t *testing.T) {
	for want, value := range map[string]float64{"0": 0, "0.50": .5, "7": 7, "9.87": 9.871, "16.5": 16.51, "133": 133.1, "-2.50": -2.5, "12346": 12345.6} {
		assert.Equal(t, want, number(value), "%v", value)
	}
	assert.InDelta(t, 1.5, Millis(1500*time.Microsecond), 0)
	assert.InDelta(t, 50, PerSecond(100, 2*time.Second), 0)
	assert.Zero(t, PerSecond(100, 0))
	assert.InDelta(t, 2.5, Processor("", "", 5*time.Millisecond, 2).Value, 0)
	assert.InDelta(t, 1.5, Bytes("", "", 3<<19).Value, 0)
	assert.InDelta(t, 1.5, CPUs("", "", 3*time.Second, 2*time.Second).Value, 0)
	assert.Zero(t, CPUs("", "", time.Second, 0).Value)

	assert.Zero(t, Samples(nil).Quantile(.5))
	all := Samples{3, 1, 2, 5, 4}
	for q, want := range map[float64]time.Duration{0: 1, .5: 3, .99: 5, 1: 5} {
		assert.Equal(t, want, all.Quantile(q))
	}
	assert.Equal(t, Samples{3, 1, 2, 5, 4}, all, "the order is not changed")
}

func TestQuotient(t *testing.T) {
	assert.InDelta(t, 1.5, Quotient("row", "title", 3, 2).Value, 0)
	for _, a := range []float64{0, 3} {
		_, err := Keep(t.TempDir(), Record{Figures: []Figure{Quotient("row", "title", a, 0)}})
		assert.NoError(t, err, "%v divided by 0", a)
	}
}

func TestCompare(t *testing.T) {
	for name, test := range map[string]struct {
		kind              Kind
		more              bool
		before, now       float64
		worse, uncompared bool
	}{
		"the same count":                {kind: Count, before: 15, now: 15},
		"a repeated request":            {kind: Count, before: 15, now: 15.4},
		"one request more":              {kind: Count, before: 15, now: 16, worse: true},
		"one request less":              {kind: Count, before: 15, now: 14},
		"one failure instead of none":   {kind: Count, before: 0, now: 1, worse: true},
		"none and none":                 {kind: Count, before: 0, now: 0},
		"a slightly smaller share":      {kind: Ratio, more: true, before: 1, now: .8},
		"a smaller share":               {kind: Ratio, more: true, before: 1, now: .7, worse: true},
		"a larger share":                {kind: Ratio, more: true, before: .5, now: 1},
		"a larger ratio":                {kind: Ratio, before: 1, now: 1.3, worse: true},
		"a heap before its collection":  {kind: Size, before: 100, now: 114},
		"a larger heap":                 {kind: Size, before: 100, now: 120, worse: true},
		"seconds are not compared":      {kind: Time, before: 1, now: 100, uncompared: true},
		"processor time is not either":  {kind: CPU, before: 1, now: 100, uncompared: true},
		"an unknown kind is not either": {kind: "", before: 1, now: 100, uncompared: true},
	} {
		t.Run(name, func(t *testing.T) {
			row := func(value float64) []Figure {
				return []Figure{{Row: "r", Value: value, Kind: test.kind, MoreIsBetter: test.more}}
			}
			changes := Compare(row(test.before), row(test.now))
			if test.uncompared {
				assert.Empty(t, changes)
				return
			}
			require.Len(t, changes, 1)
			assert.Equal(t, test.worse, changes[0].Worse)
		})
	}
	assert.Empty(t, Compare([]Figure{Counted("a", "", 1)}, []Figure{Counted("b", "", 9)}), "rows of only one run")
}

func TestRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "directory")
	record := func(hour int, settings string, all ...Figure) Record {
		return Record{
			Time: time.Date(2026, 11, 21, hour, 0, 0, 0, time.UTC), Commit: "abc", Machine: "2 CPUs", Go: "go1.26", Settings: settings, Figures: all,
		}
	}
	kept := []Record{
		record(7, "parts [a b]: 1000 at once; processes [1 2 4]", Counted("a", "", 7), Counted("b", "", 7)),
		record(8, "1000 at once", Counted("a", "", 8)),
		record(9, "50 at once", Counted("a", "", 9)),
	}
	for _, r := range []int{1, 0, 2} {
		file, err := Keep(dir, kept[r])
		require.NoError(t, err)
		assert.Equal(t, kept[r].Time.Format("2006-01-02T150405Z")+".json", filepath.Base(file))
	}
	all, err := Records(dir)
	require.NoError(t, err)
	assert.Equal(t, kept, all)

	rows, used, err := Baseline(dir, "1000 at once")
	require.NoError(t, err)
	assert.Equal(t, []Figure{Counted("a", "", 8), Counted("b", "", 7)}, rows, "the newest figure of each row")
	assert.Equal(t, []Record{kept[1], kept[0]}, used)
	_, _, err = Baseline(dir, "0 at once")
	require.ErrorContains(t, err, "`make bench` keeps one")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.json"), []byte("no record"), 0o600))
	_, _, err = Baseline(dir, "")
	require.ErrorContains(t, err, "x.json is not a record")
	_, err = Keep(filepath.Join(dir, "x.json"), kept[0])
	require.Error(t, err, "a directory that is a file")
}
