// Package await waits for something by looking at it.
package await

import (
	"context"
	"fmt"
	"time"
)

// Look says whether something is so, and what it saw.
type Look func(ctx context.Context) (so bool, saw string)

// Pace is how often to look: the pause after the first look, and the longest. What takes longer is looked at less often, by
// a tenth of what it has taken: to look at a whole cluster is work for it.
type Pace struct{ First, Most time.Duration }

// Until looks until it is so. The error says how long that was waited for in vain until the context ended, and what was seen
// last.
func (p Pace) Until(ctx context.Context, look Look) error {
	for began, saw := time.Now(), "nothing"; ; {
		so, latest := look(ctx)
		if so {
			return nil
		}
		if ctx.Err() == nil { // a look that the end of the wait cut off saw nothing
			saw = latest
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %.0fs; the last that was seen: %s", time.Since(began).Seconds(), saw)
		case <-time.After(p.pause(time.Since(began))):
		}
	}
}

func (p Pace) pause(waited time.Duration) time.Duration {
	return min(max(p.First, waited/10), p.Most)
}
