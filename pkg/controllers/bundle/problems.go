package bundle

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
)

// toldProblems is how many are told of at most; a status is no log.
const toldProblems = 10

// problems are what several Bundles of one Cluster met with.
type problems []error

// joined is nil when there is none.
func joined(all ...error) error {
	left := problems(slices.DeleteFunc(all, func(err error) bool { return err == nil }))
	if len(left) == 0 {
		return nil
	}
	return left
}

// Error tells of the first ones, in their order.
func (p problems) Error() string {
	var told []string
	for _, err := range p[:min(len(p), toldProblems)] {
		told = append(told, err.Error())
	}
	if more := len(p) - toldProblems; more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(told, "; ")
}

// Unwrap has errors.Is and errors.As look at each.
func (p problems) Unwrap() []error { return p }

// onlyForeign says that nothing is wrong but names that are taken, which no retry changes.
func onlyForeign(err error) bool {
	var all problems
	if !errors.As(err, &all) {
		return false
	}
	return !slices.ContainsFunc(all, func(one error) bool {
		var foreign *foreignError
		var foreignRole *desiredset.ForeignError
		return !errors.As(one, &foreign) && !errors.As(one, &foreignRole)
	})
}
