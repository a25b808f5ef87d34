//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-fleet/muster/internal/await"
)

// patience limits each wait. It is long because the machine can be busy.
const patience = 2 * time.Minute

var pace = await.Pace{First: 100 * time.Millisecond, Most: time.Second}

// until waits for a condition. The failure contains the last state.
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

// seen converts the response of an API server into the result of a poll.
func seen(err error, so bool, saw string) (bool, string) {
	if err != nil {
		return false, err.Error()
	}
	return so, saw
}
