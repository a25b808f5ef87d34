package figures

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"sigs.k8s.io/yaml"
)

// Limit is the range that a figure must be in.
type Limit struct {
	AtMost  *float64 `json:"atMost,omitempty"`
	AtLeast *float64 `json:"atLeast,omitempty"`
}

// Met reports whether a value is within the limit.
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

// Limits are limits by row. The name of a row may be a pattern in which each star stands for one segment: growth/*/memory.
type Limits map[string]Limit

// Of returns the limit of a row: the limit with exactly that name, or the limit with the longest pattern that matches.
func (l Limits) Of(row string) (limit Limit, found bool) {
	if limit, found := l[row]; found {
		return limit, true
	}
	best := ""
	for _, pattern := range slices.Sorted(maps.Keys(l)) {
		if matches(pattern, row) && len(pattern) > len(best) {
			best, limit, found = pattern, l[pattern], true
		}
	}
	return limit, found
}

func matches(pattern, row string) bool {
	ok, err := path.Match(pattern, row)
	return err == nil && ok
}

// Check returns the figures that do not meet their limit, and the limits for which there is no figure. The second list shows that a row was
// renamed and its limit was not.
func (l Limits) Check(all []Figure) (missed []Figure, unmeasured []string) {
	for _, f := range all {
		if limit, found := l.Of(f.Row); found && !limit.Met(f.Value) {
			missed = append(missed, f)
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(l)) {
		if !slices.ContainsFunc(all, func(f Figure) bool { return matches(pattern, f.Row) }) {
			unmeasured = append(unmeasured, pattern)
		}
	}
	return missed, unmeasured
}

// LimitFile is the content of bench/budgets.yaml.
type LimitFile struct {
	// Targets are the limits of a whole run on the machine they were set for.
	Targets Limits `json:"targets"`
	// Budgets are the limits of the small run on any machine.
	Budgets Limits `json:"budgets"`
}

// ParseLimits reads a LimitFile. A limit without atMost and atLeast is an error.
func ParseLimits(data []byte) (f LimitFile, err error) {
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
