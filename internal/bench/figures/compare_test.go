package figures

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatIsWorseThanNoise(t *testing.T) {
	for name, test := range map[string]struct {
		kind         Kind
		more         bool
		before, now  float64
		worse, alone bool
	}{
		"a count that is the same":           {kind: Count, before: 15, now: 15},
		"a pass that ran twice now and then": {kind: Count, before: 15, now: 15.4},
		"one request more":                   {kind: Count, before: 15, now: 16, worse: true},
		"a request less":                     {kind: Count, before: 15, now: 14},
		"a failure where there was none":     {kind: Count, before: 0, now: 1, worse: true},
		"none and none":                      {kind: Count, before: 0, now: 0},
		"a share that fell a little":         {kind: Ratio, more: true, before: 1, now: .8},
		"a share that fell":                  {kind: Ratio, more: true, before: 1, now: .7, worse: true},
		"a share that rose":                  {kind: Ratio, more: true, before: .5, now: 1},
		"a ratio that rose":                  {kind: Ratio, before: 1, now: 1.3, worse: true},
		"a heap before its collection":       {kind: Size, before: 100, now: 114},
		"a heap that grew":                   {kind: Size, before: 100, now: 120, worse: true},
		"seconds are not compared":           {kind: Time, before: 1, now: 100, alone: true},
		"nor is processor time":              {kind: CPU, before: 1, now: 100, alone: true},
		"nor a text":                         {kind: Text, alone: true},
		"nor what is of no kind":             {kind: "", before: 1, now: 100, alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			row := func(value float64) []Figure {
				return []Figure{{Row: "r", Value: value, Kind: test.kind, MoreIsBetter: test.more}}
			}
			changes := Compare(row(test.before), row(test.now))
			if test.alone {
				assert.Empty(t, changes)
				return
			}
			require.Len(t, changes, 1)
			assert.Equal(t, test.worse, changes[0].Worse)
			assert.Equal(t, test.worse, len(Worse(changes)) == 1)
		})
	}
}

func TestARowThatOnlyOneRunHasIsNotCompared(t *testing.T) {
	one, other := []Figure{{Row: "a", Kind: Count}}, []Figure{{Row: "b", Kind: Count, Value: 9}}
	assert.Empty(t, Compare(one, other))
}

func TestTheTableOfChanges(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, ChangeTable(&out, []Change{
		{Row: "storm/writes", Before: 15, Now: 16.51, Worse: true}, {Row: "storm/memory", Before: 133.1, Now: 98, Unit: "MiB"},
	}))
	golden(t, "changes.txt", out.String())
}
