//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"
)

const (
	// patience is how long anything may take. It is no expectation: the machine may have other things to do.
	patience = 2 * time.Minute
	// glance is the pause between two looks at first. What takes longer is looked at less often, by a tenth of what it has taken:
	// to look at a whole cluster is work for it.
	glance     = 100 * time.Millisecond
	glanceMost = time.Second
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
	for began, saw := time.Now(), "nothing"; ; {
		now, latest := l(ctx)
		if now {
			return nil
		}
		if ctx.Err() == nil { // the look that the end of the wait cut off saw nothing
			saw = latest
		}
		waited := time.Since(began)
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %.0fs for %s; the last that was seen: %s", waited.Seconds(), what, saw)
		case <-time.NewTimer(min(max(glance, waited/10), glanceMost)).C:
		}
	}
}

// seen is the answer of a look that asked an API server.
func seen(err error, so bool, saw string) (bool, string) {
	if err != nil {
		return false, err.Error()
	}
	return so, saw
}
