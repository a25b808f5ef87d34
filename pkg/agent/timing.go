package agent

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// Timing holds every duration of the agent except the check-in interval. DefaultTiming is what a cluster wants; tests
// shorten it.
type Timing struct {
	// Request bounds one request to the hub or to the member's API server.
	Request time.Duration
	// RetryFirst and RetryMax bound the growing pause between two attempts at anything that failed.
	RetryFirst, RetryMax time.Duration
	// PollFirst and PollMax bound the growing pause between two looks for the credential the hub makes.
	PollFirst, PollMax time.Duration
	// PollSoon is how long a credential may come at any moment; after that, looks are up to PollLate apart.
	PollSoon, PollLate time.Duration
	// Registration is how long the hub has to answer one request; then the agent sends it again, or makes another one where this
	// one may have been answered in vain.
	Registration time.Duration
	// Unseen is how long the hub may be out of reach before a credential may have come and gone. The hub keeps one for longer.
	Unseen time.Duration
	// RightsLag is how long a new credential may answer 403: the hub writes rights one by one, and API servers learn of
	// them a moment later.
	RightsLag time.Duration
	// RefusalPause is the pause between two questions while a refusal is suspected, RefusalSpread how far the first and
	// the last refusal must be apart.
	RefusalPause, RefusalSpread time.Duration
	// HelmWaits is how long after the agent began to work a bootstrap Secret that Helm has made stays, for a Helm that waits
	// until everything it made is in order. A Deployment is available some seconds after its Pod has started.
	HelmWaits time.Duration
	// RenewAfter is the part of a credential's life after which it is renewed, a tenth more or less.
	RenewAfter float64
	// RefusedFirst and RefusedMax bound the growing pause between two looks for a credential that the hub has refused to give:
	// somebody may approve the request later. The hub keeps a credential for longer than RefusedMax.
	RefusedFirst, RefusedMax time.Duration
}

// DefaultTiming is the timing for real clusters.
func DefaultTiming() Timing {
	return Timing{
		Request:       30 * time.Second,
		RetryFirst:    time.Second,
		RetryMax:      2 * time.Minute,
		PollFirst:     50 * time.Millisecond,
		PollMax:       2 * time.Second,
		PollSoon:      5 * time.Minute,
		PollLate:      30 * time.Second,
		Registration:  30 * time.Minute,
		Unseen:        30 * time.Minute,
		RightsLag:     30 * time.Second,
		RefusalPause:  2500 * time.Millisecond,
		RefusalSpread: 5 * time.Second,
		HelmWaits:     15 * time.Second,
		RenewAfter:    2.0 / 3,
		RefusedFirst:  30 * time.Second,
		RefusedMax:    10 * time.Minute,
	}
}

const (
	// refusalsNeeded is how many refusals in a row make one.
	refusalsNeeded = 3

	retryFactor = 2
	pollFactor  = 1.5
	jitter      = 0.2

	// idleConnection is how long a connection to the hub stays open unused: ten thousand agents that beat every quarter
	// of an hour need not keep ten thousand connections.
	idleConnection = 90 * time.Second
)

func (t Timing) retry() *wait.Backoff { return backoff(t.RetryFirst, t.RetryMax, retryFactor) }

func (t Timing) poll() *wait.Backoff { return backoff(t.PollFirst, t.PollMax, pollFactor) }

func (t Timing) refused() *wait.Backoff { return backoff(t.RefusedFirst, t.RefusedMax, retryFactor) }

// comeback is the backoff of heartbeats that fail. The agents of a fleet that has lost its hub for long come back within a third
// of their interval: whoever makes that longer, for more agents than the hub hears easily, gets more time for their return, too.
func (t Timing) comeback(interval time.Duration) *wait.Backoff {
	const share = 3
	return backoff(t.RetryFirst, max(t.RetryMax, interval/share), retryFactor)
}

// renewal is the backoff of renewing a credential that lives that long: where a whole fleet fails, each of its agents asks
// a few dozen times until the end.
func (t Timing) renewal(life time.Duration) *wait.Backoff {
	const share = 24
	return backoff(t.RetryFirst, max(t.RetryMax, life/share), retryFactor)
}

func (t Timing) suspicion() *suspicion {
	return &suspicion{needed: refusalsNeeded, spread: t.RefusalSpread}
}

// backoff is the one constructor of growing pauses. All of them are jittered, so that agents which lost the hub together
// do not come back together.
func backoff(first, limit time.Duration, factor float64) *wait.Backoff {
	const steps = 100 // enough to reach any limit; the pause stays there
	return &wait.Backoff{Duration: first, Cap: limit, Factor: factor, Jitter: jitter, Steps: steps}
}

// spread is d, 10 % more or less: agents installed by one script do not beat in step for ever.
func spread(d time.Duration) time.Duration {
	const width = 0.2
	shortest := time.Duration(float64(d) * (1 - width/2))
	return wait.Jitter(shortest, width/(1-width/2))
}

// pause waits for d, for wake, or for the end of ctx, whichever comes first, and says whether it was wake. A nil wake
// never comes.
func pause(ctx context.Context, c clock.WithTicker, d time.Duration, wake <-chan struct{}) (woken bool) {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return false
	case <-wake:
		return true
	}
}
