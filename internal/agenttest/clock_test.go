package agenttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestClock(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 1234, time.UTC)
	clock := NewClock(noon)
	began := clock.Now()
	assert.True(t, noon.Equal(began))
	clock.Step(time.Minute)
	clock.StepWall(-24 * time.Hour)
	assert.Equal(t, time.Minute, clock.Since(began), "by the monotonic clock")
	assert.Equal(t, noon.Add(time.Minute-24*time.Hour), clock.Now().Round(0), "the wall clock")
	assert.Equal(t, noon.Add(time.Minute-24*time.Hour), clock.Now().UTC().Round(0))
}
