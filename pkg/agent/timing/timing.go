// Package timing holds the durations of registration, renewal and heartbeat, except the check-in interval, and the backoffs made of them.
// Package deploy has durations of its own.
package timing

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// Durations are the agent's timeouts and the limits of its backoffs. Default is for real clusters; tests shorten it.
type Durations struct {
	// Request limits one request to the hub or to the member's API server.
	Request time.Duration
	// RetryFirst and RetryMax are the first and the longest pause after a failure.
	RetryFirst, RetryMax time.Duration
	// PollFirst and PollMax are the first and the longest pause between two reads of the answer Secret that the hub creates.
	PollFirst, PollMax time.Duration
	// PollFast is the time after a request for which the agent polls with these pauses. After that, a person probably has to approve the
	// request, and the pause grows to PollSlowMax.
	PollFast, PollSlowMax time.Duration
	// Registration limits the wait for the answer to one request. Then the agent sends the same request again, or a new one if the
	// hub may have granted this one and deleted the credential before the agent read it.
	Registration time.Duration
	// MaxResponseGap limits the gap between two responses of the hub's API server to polls for the answer Secret. If it responded at least this often,
	// no credential can have been issued and deleted between two responses: the hub keeps a credential for longer.
	MaxResponseGap time.Duration
	// RightsLag is the time for which requests with a new credential may fail: API servers may see the Roles and the ServiceAccount a moment later
	// than the answer Secret, and Fleet's hub writes the Roles after it.
	RightsLag time.Duration
	// RejectionPause is the pause between two requests while a credential seems to be rejected. The first and the last of these
	// rejections must be RejectionSpread apart.
	RejectionPause, RejectionSpread time.Duration
	// HelmWait is the time for which the agent keeps a bootstrap Secret of a Helm release after it began to work, for "helm install --wait". A
	// Deployment becomes available some seconds after its Pod has started.
	HelmWait time.Duration
	// RenewFraction is the part of a credential's lifetime after which it is renewed. Each renewal is jittered by a tenth.
	RenewFraction float64
	// RefusedFirst and RefusedMax are the first and the longest pause between two reads after the hub has refused a request: a
	// person may approve it later. The hub keeps a credential for longer than RefusedMax.
	RefusedFirst, RefusedMax time.Duration
}

// Default returns the durations for real clusters.
func Default() Durations {
	return Durations{
		Request:         30 * time.Second,
		RetryFirst:      time.Second,
		RetryMax:        2 * time.Minute,
		PollFirst:       50 * time.Millisecond,
		PollMax:         2 * time.Second,
		PollFast:        5 * time.Minute,
		PollSlowMax:     30 * time.Second,
		Registration:    30 * time.Minute,
		MaxResponseGap:  30 * time.Minute,
		RightsLag:       30 * time.Second,
		RejectionPause:  2500 * time.Millisecond,
		RejectionSpread: 5 * time.Second,
		HelmWait:        15 * time.Second,
		RenewFraction:   2.0 / 3,
		RefusedFirst:    30 * time.Second,
		RefusedMax:      10 * time.Minute,
	}
}

const (
	retryFactor = 2
	pollFactor  = 1.5
	jitter      = 0.2
)

// Backoff returns a backoff that doubles its pause up to the limit.
func Backoff(first, limit time.Duration) *wait.Backoff { return backoff(first, limit, retryFactor) }

// Retry returns the backoff after failures.
func (d Durations) Retry() *wait.Backoff { return Backoff(d.RetryFirst, d.RetryMax) }

// Poll returns the backoff of polling for a credential that may come at any moment.
func (d Durations) Poll() *wait.Backoff { return backoff(d.PollFirst, d.PollMax, pollFactor) }

// PollSlowly returns the backoff of polling for a credential that a person probably has to approve.
func (d Durations) PollSlowly() *wait.Backoff { return backoff(d.PollMax, d.PollSlowMax, pollFactor) }

// PollRefused returns the backoff of polling after the hub has refused the request.
func (d Durations) PollRefused() *wait.Backoff { return Backoff(d.RefusedFirst, d.RefusedMax) }

// RetryHeartbeat returns the backoff of heartbeats that fail. After a long outage of the hub, each agent sends a heartbeat within RetryMax or a
// third of the interval, the longer of the two, and a fifth more. A longer interval, chosen for a large fleet, also spreads these heartbeats.
func (d Durations) RetryHeartbeat(interval time.Duration) *wait.Backoff {
	const share = 3
	return backoff(d.RetryFirst, max(d.RetryMax, interval/share), retryFactor)
}

// RetryRenewal returns the backoff of renewing a credential with that lifetime. If the renewals of a whole fleet fail, each agent
// sends a few dozen requests until its credential expires.
func (d Durations) RetryRenewal(lifetime time.Duration) *wait.Backoff {
	const share = 24
	return backoff(d.RetryFirst, max(d.RetryMax, lifetime/share), retryFactor)
}

// backoff returns a backoff with jitter, so that agents that lost the hub at the same moment do not return at the same moment.
func backoff(first, limit time.Duration, factor float64) *wait.Backoff {
	const steps = 100 // enough to reach any limit; the pause stays there
	return &wait.Backoff{Duration: first, Cap: limit, Factor: factor, Jitter: jitter, Steps: steps}
}

// Jitter returns d, 10 % more or less: agents that were installed by one script must not send their heartbeats in step.
func Jitter(d time.Duration) time.Duration {
	const width = 0.2
	shortest := time.Duration(float64(d) * (1 - width/2))
	return wait.Jitter(shortest, width/(1-width/2))
}

// Pause waits until d has passed, wake receives a signal, or ctx ends, and reports whether the signal ended it. wake may be nil.
func Pause(ctx context.Context, c clock.WithTicker, d time.Duration, wake <-chan struct{}) (woken bool) {
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
