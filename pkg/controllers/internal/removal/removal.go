// Package removal has the states in which the removal of an agent from its member can be.
package removal

import "time"

type state int

const (
	notNeeded state = iota
	underWay
	left
	removed
)

// State is the state of the removal of an agent, and of what it deployed. It is created by NotNeeded, UnderWay, Left or Removed.
type State struct {
	state state
	// Reason is a constant of the API package: why something may be left.
	Reason string
	// Message is for people: for what the removal waits, or why something may be left. Passes with the same state have the same message.
	Message string
	// After is the time after which a removal that is under way must be looked at again, even without an event; 0 means never.
	After time.Duration
}

// NotNeeded means that there is no agent, or that this way to remove it does not exist.
func NotNeeded() State { return State{} }

// UnderWay means that the removal runs or will be repeated.
func UnderWay(message string, after time.Duration) State {
	return State{state: underWay, Message: message, After: after}
}

// Left means that something may be left on the member, and that the removal is not repeated.
func Left(reason, message string) State {
	return State{state: left, Reason: reason, Message: message}
}

// Removed means that nothing is left on the member.
func Removed() State { return State{state: removed} }

// IsNotNeeded reports a state of NotNeeded.
func (s State) IsNotNeeded() bool { return s.state == notNeeded }

// IsUnderWay reports a state of UnderWay.
func (s State) IsUnderWay() bool { return s.state == underWay }

// IsLeft reports a state of Left.
func (s State) IsLeft() bool { return s.state == left }

// IsRemoved reports a state of Removed.
func (s State) IsRemoved() bool { return s.state == removed }
