//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// patience is how long anything may take. It is no expectation: the machine may have other things to do.
	patience = 2 * time.Minute
	// glance is the pause between two looks.
	glance = 100 * time.Millisecond
)

// look says whether something is so, and what it saw.
type look func(ctx context.Context) (so bool, saw string)

// until waits for something to be so. What was seen last is in the failure.
func (s *scene) until(what string, l look) {
	s.Helper()
	s.fail(await(s.Context(), what, l))
}

func await(ctx context.Context, what string, l look) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began, saw := time.Now(), "nothing"
	err := wait.PollUntilContextCancel(ctx, glance, true, func(ctx context.Context) (so bool, _ error) {
		now, latest := l(ctx)
		if now || ctx.Err() == nil { // the look that the end of the wait cut off saw nothing
			saw = latest
		}
		return now, nil
	})
	if err != nil {
		return fmt.Errorf("waited %.0fs for %s; the last that was seen: %s", time.Since(began).Seconds(), what, saw)
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
