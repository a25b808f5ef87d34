package figures

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func parsed(t *testing.T, text string) LimitFile {
	t.Helper()
	f, err := ParseLimits([]byte(text))
	require.NoError(t, err)
	return f
}

func TestLimitOfARow(t *testing.T) {
	limits := parsed(t, `
targets:
  growth/*/memory: {atMost: 400}
  growth/1*/memory: {atMost: 200}
  growth/1000/memory: {atMost: 120}
  storm/rate: {atLeast: 48}
  share: {atLeast: 0.8, atMost: 2}
`).Targets
	for row, want := range map[string]string{
		"growth/1000/memory":  "<= 120",
		"growth/100/memory":   "<= 200",
		"growth/300/memory":   "<= 400",
		"storm/rate":          ">= 48",
		"share":               "0.8 to 2",
		"growth/1000/cpu":     "",
		"growth/1/2/memory":   "",
		"a/growth/300/memory": "",
	} {
		limit, found := limits.Of(row)
		assert.Equal(t, want, limit.String(), row)
		assert.Equal(t, want != "", found, row)
	}
}

func TestLimitIsInclusive(t *testing.T) {
	limits := parsed(t, `{budgets: {most: {atMost: 2}, least: {atLeast: 3}, both: {atLeast: 1, atMost: 2}, none: {atMost: 0}}}`).Budgets
	for name, test := range map[string]struct {
		row   string
		value float64
		met   bool
	}{
		"at most":                 {"most", 2, true},
		"more":                    {"most", 2.01, false},
		"at least":                {"least", 3, true},
		"less":                    {"least", 2.99, false},
		"between":                 {"both", 1.5, true},
		"below":                   {"both", .5, false},
		"above":                   {"both", 2.5, false},
		"zero, and zero measured": {"none", 0, true},
		"zero, and one measured":  {"none", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			limit, found := limits.Of(test.row)
			require.True(t, found)
			assert.Equal(t, test.met, limit.Met(test.value))
		})
	}
}

func TestCheck(t *testing.T) {
	limits := parsed(t, `{budgets: {storm/writes: {atMost: 15}, growth/*/idle: {atMost: 0}, storm/gone: {atMost: 1}}}`).Budgets
	writes, idle, free := Figure{Row: "storm/writes", Value: 16}, Figure{Row: "growth/100/idle"}, Figure{Row: "storm/rate", Value: 1}
	exceeded, unmeasured := limits.Check([]Figure{writes, idle, free})
	assert.Equal(t, []Figure{writes}, exceeded)
	assert.Equal(t, []string{"storm/gone"}, unmeasured)
}

func TestParseLimits(t *testing.T) {
	for name, test := range map[string]struct{ text, says string }{
		"no limit":           {"targets: {a: {}}", "a has neither"},
		"a misspelled field": {"targets: {a: {most: 1}}", "most"},
		"another section":    {"budget: {a: {atMost: 1}}", "budget"},
		"a broken pattern":   {"budgets: {'a[': {atMost: 1}}", "a["},
		"no YAML":            {"targets: [", "reading limits"},
		"a row given twice":  {"targets: {a: {atMost: 1}, a: {atMost: 2}}", "reading limits"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseLimits([]byte(test.text))
			require.ErrorContains(t, err, test.says)
		})
	}
}
