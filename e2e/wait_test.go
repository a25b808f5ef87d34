//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-fleet/muster/internal/await"
)

// patience is how long anything may take. It is no expectation: the machine may have other things to do.
const patience = 2 * time.Minute

var pace = await.Pace{First: 100 * time.Millisecond, Most: time.Second}

// until waits for something to be so. What was seen last is in the failure.
func (s *scene) until(what string, l await.Look) {
	s.Helper()
	s.fail(waitFor(s.Context(), what, l))
}

func waitFor(ctx context.Context, what string, l await.Look) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := pace.Until(ctx, l); err != nil {
		return fmt.Errorf("for %s: %w", what, err)
	}
	return nil
}

// seen is the answer of a look that asked an API server.
func seen(err error, so bool, saw string) (bool, string) {
	if err != nil {
		return false, err.Error()
	}
	return so, saw
}
