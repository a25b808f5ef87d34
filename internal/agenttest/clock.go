package agenttest

import (
	"sync/atomic"
	"time"
	"unsafe"

	clocktesting "k8s.io/utils/clock/testing"
)

// Clock is a fake clock whose times have two readings, as those of time.Now: a wall clock reading, which StepWall changes, and a monotonic one,
// from which timers and the difference of two times follow. For a process, an NTP server that sets the clock looks like StepWall, and so does a
// machine that was suspended: the monotonic clock of Linux stops meanwhile.
type Clock struct {
	*clocktesting.FakeClock // the monotonic reading
	began                   time.Time
	stepped                 atomic.Int64 // time.Duration of the wall clock
}

// NewClock returns a clock that shows the time.
func NewClock(now time.Time) *Clock {
	return &Clock{FakeClock: clocktesting.NewFakeClock(now), began: now}
}

// StepWall sets the wall clock forward, or backward if d is negative.
func (c *Clock) StepWall(d time.Duration) { c.stepped.Add(int64(d)) }

// Elapsed returns the time since NewClock by the monotonic clock.
func (c *Clock) Elapsed() time.Duration { return c.FakeClock.Since(c.began) }

// Now implements clock.PassiveClock.
func (c *Clock) Now() (now time.Time) {
	// Package time has no function that sets the two readings apart. This is the layout of a time.Time with both of them.
	const (
		hasMonotonic  = 1 << 63
		secondsShift  = 30
		unixSince1885 = 2682288000
	)
	wall := c.FakeClock.Now().Add(time.Duration(c.stepped.Load()))
	fields := (*struct {
		wall      uint64
		monotonic int64
	})(unsafe.Pointer(&now)) //nolint:gosec // TestClock fails if the layout is another one
	fields.wall = hasMonotonic | uint64(wall.Unix()+unixSince1885)<<secondsShift | uint64(wall.Nanosecond()) //nolint:gosec // from 1885 to 2157
	fields.monotonic = int64(c.Elapsed())
	return now
}

// Since implements clock.PassiveClock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
