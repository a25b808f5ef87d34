// Package removal has the progress of the removal of an agent from its member.
package removal

import "time"

type removalPhase int

const (
	notNeeded removalPhase = iota
	underWay
	givenUp
	removed
)

// Progress is the progress of the removal of an agent, and of what it deployed. It is created by NotNeeded, UnderWay, GivenUp or Removed.
type Progress struct {
	phase removalPhase
	// Reason is a constant of the API package: why something may be left.
	Reason string
	// Message is for people: for what the removal waits, or why something may be left. Passes with the same progress have the same message.
	Message string
	// After is the time after which a removal that is under way must be looked at again, even without an event; 0 means never.
	After time.Duration
}

// NotNeeded means that there is no agent, or that this way to remove it does not exist.
func NotNeeded() Progress { return Progress{} }

// UnderWay means that the removal runs or will be repeated.
func UnderWay(message string, after time.Duration) Progress {
	return Progress{phase: underWay, Message: message, After: after}
}

// GivenUp means that something may be left on the member, and that the removal is not repeated.
func GivenUp(reason, message string) Progress {
	return Progress{phase: givenUp, Reason: reason, Message: message}
}

// Removed means that nothing is left on the member.
func Removed() Progress { return Progress{phase: removed} }

// IsUnderWay reports the progress of UnderWay.
func (p Progress) IsUnderWay() bool { return p.phase == underWay }

// IsGivenUp reports the progress of GivenUp.
func (p Progress) IsGivenUp() bool { return p.phase == givenUp }

// IsRemoved reports the progress of Removed.
func (p Progress) IsRemoved() bool { return p.phase == removed }
