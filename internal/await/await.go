// Package await polls conditions, less often the longer it waits.
package await

import (
	"context"
	"fmt"
	"time"
)

// Look checks a condition once. It returns whether the condition is true, and a description of the current state for an error.
type Look func(ctx context.Context) (done bool, state string)

// Pace has the shortest and the longest pause between two calls of a Look. Between these limits, a pause is a tenth of the time waited so far:
// a Look may read a whole cluster, so frequent calls would load it.
type Pace struct{ First, Most time.Duration }

// Until calls look until the condition is true. If ctx ends first, the error contains the time waited and the last state.
func (p Pace) Until(ctx context.Context, look Look) error {
	for began, state := time.Now(), "nothing"; ; {
		done, latest := look(ctx)
		if done {
			return nil
		}
		if ctx.Err() == nil || state == "nothing" { // a call that the end of ctx interrupted returns no useful state
			state = latest
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %.0fs; last state: %s", time.Since(began).Seconds(), state)
		case <-time.After(p.pause(time.Since(began))):
		}
	}
}

func (p Pace) pause(waited time.Duration) time.Duration {
	return min(max(p.First, waited/10), p.Most)
}
