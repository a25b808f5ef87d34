// Package await polls.
package await

import (
	"context"
	"fmt"
	"time"
)

// Look returns whether the condition is true, and a description of the current state.
type Look func(ctx context.Context) (done bool, state string)

// Pace has the first and the longest pause between two looks. The pause grows to a tenth of the time waited, because looking at a whole
// cluster causes load.
type Pace struct{ First, Most time.Duration }

// Until looks until the condition is true. If ctx ends first, the error has the time waited and the last state.
func (p Pace) Until(ctx context.Context, look Look) error {
	for began, state := time.Now(), "nothing"; ; {
		done, latest := look(ctx)
		if done {
			return nil
		}
		if ctx.Err() == nil || state == "nothing" { // a look that was interrupted by the end of ctx has no useful state
			state = latest
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %.0fs; the last that was seen: %s", time.Since(began).Seconds(), state)
		case <-time.After(p.pause(time.Since(began))):
		}
	}
}

func (p Pace) pause(waited time.Duration) time.Duration {
	return min(max(p.First, waited/10), p.Most)
}
