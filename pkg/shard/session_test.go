package shard

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOnlyWhatIsStillHeldAsItWasTakenIsOpened(t *testing.T) {
	s := newSession(&member{}, nil)
	var told []Set
	s.gate.OnTake(func(taken Set) { told = append(told, taken) })
	kept, lost, again, leaving := &hold{acquired: true}, &hold{acquired: true}, &hold{acquired: true}, &hold{}
	s.holds[0], s.holds[2], s.holds[3] = kept, &hold{acquired: true}, leaving
	s.open([Count]*hold{kept, lost, again, leaving})
	assert.True(t, s.gate.Holds(0))
	assert.False(t, s.gate.Holds(1), "it was given back")
	assert.False(t, s.gate.Holds(2), "it was taken again, and its caches may be behind")
	assert.False(t, s.gate.Holds(3), "its Lease is gone")
	assert.Equal(t, []Set{set(0)}, told)

	s.open([Count]*hold{2: s.holds[2]})
	assert.True(t, s.gate.Holds(2))
}
