package figures

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"sigs.k8s.io/yaml"
)

// Limit is what a figure must reach.
type Limit struct {
	AtMost  *float64 `json:"atMost,omitempty"`
	AtLeast *float64 `json:"atLeast,omitempty"`
}

// Met says whether a value keeps to the limit.
func (l Limit) Met(value float64) bool {
	return (l.AtMost == nil || value <= *l.AtMost) && (l.AtLeast == nil || value >= *l.AtLeast)
}

func (l Limit) String() string {
	switch {
	case l.AtMost != nil && l.AtLeast != nil:
		return fmt.Sprintf("%g to %g", *l.AtLeast, *l.AtMost)
	case l.AtMost != nil:
		return fmt.Sprintf("<= %g", *l.AtMost)
	case l.AtLeast != nil:
		return fmt.Sprintf(">= %g", *l.AtLeast)
	}
	return ""
}

// Limits are limits by row. A row may have stars, each for a part of a name: growth/*/memory.
type Limits map[string]Limit

// Of returns the limit of a row: its own, else that of the longest row with stars that fits.
func (l Limits) Of(row string) (Limit, bool) {
	if own, found := l[row]; found {
		return own, true
	}
	best := ""
	for pattern := range l {
		if fits(pattern, row) && (len(pattern) > len(best) || len(pattern) == len(best) && pattern < best) {
			best = pattern
		}
	}
	limit, found := l[best]
	return limit, found && best != ""
}

func fits(pattern, row string) bool {
	ok, err := path.Match(pattern, row)
	return err == nil && ok
}

// Judge returns the rows that break their limit, and the limits that none of the figures has: a gate that a renamed row
// would leave open.
func (l Limits) Judge(all []Figure) (broken []Figure, unmeasured []string) {
	for _, f := range all {
		if limit, found := l.Of(f.Row); found && !limit.Met(f.Value) {
			broken = append(broken, f)
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(l)) {
		if !slices.ContainsFunc(all, func(f Figure) bool { return fits(pattern, f.Row) }) {
			unmeasured = append(unmeasured, pattern)
		}
	}
	return broken, unmeasured
}

// File is the file that has all limits.
type File struct {
	// Targets are what a whole run must reach on the machine they were set for.
	Targets Limits `json:"targets"`
	// Budgets are what the small run must keep to on any machine.
	Budgets Limits `json:"budgets"`
}

// ParseLimits reads that file. A limit that limits nothing is an error.
func ParseLimits(data []byte) (f File, err error) {
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return f, fmt.Errorf("reading limits: %w", err)
	}
	for _, limits := range []Limits{f.Targets, f.Budgets} {
		for row, limit := range limits {
			if limit.AtMost == nil && limit.AtLeast == nil {
				return f, fmt.Errorf("reading limits: %s has neither atMost nor atLeast", row)
			}
			if _, err := path.Match(row, ""); err != nil {
				return f, fmt.Errorf("reading limits: %s: %w", row, err)
			}
		}
	}
	return f, nil
}
