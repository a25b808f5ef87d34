package finalizing

import "time"

// Farewell is the result of one of the two ways to remove an agent and its Helm releases from the member of a deleted Cluster: by the agent itself,
// or by the hub with the kubeconfig. The zero value is NotNeeded.
type Farewell struct {
	state farewellState
	// Reason is a constant of the API package, and Message is for people. Only a farewell that is waiting or given up has them.
	Reason, Message string
	// After is the time after which a farewell that is waiting is tried again even without an event.
	After time.Duration
}

type farewellState int

const (
	notNeeded farewellState = iota
	removed
	waiting
	givenUp
)

// NotNeeded means that there is nothing to do this way: there never was an agent, or the Cluster names no kubeconfig.
func NotNeeded() Farewell { return Farewell{state: notNeeded} }

// Removed means that the releases are uninstalled, and that the agent is removed or, if it does that itself, about to be. Namespaces and resources
// that are to be kept stay.
func Removed() Farewell { return Farewell{state: removed} }

// Waiting means that the removal goes on. Its end is an event; the Cluster is enqueued after the given time at the latest.
func Waiting(reason, message string, after time.Duration) Farewell {
	return Farewell{state: waiting, Reason: reason, Message: message, After: after}
}

// GivenUp means that something may be left on the member, and that it is not tried again. The deletion of the Cluster goes on.
func GivenUp(reason, message string) Farewell {
	return Farewell{state: givenUp, Reason: reason, Message: message}
}

// IsRemoved reports a result of Removed.
func (f Farewell) IsRemoved() bool { return f.state == removed }

// IsWaiting reports a result of Waiting.
func (f Farewell) IsWaiting() bool { return f.state == waiting }

// IsGivenUp reports a result of GivenUp.
func (f Farewell) IsGivenUp() bool { return f.state == givenUp }
