package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestDelays(t *testing.T) {
	c := &Context{}
	assert.Equal(t, DefaultStatusDelay, c.StatusDelay())
	assert.Equal(t, DefaultRepairDelay, c.RepairDelay())
	c.Delays = Delays{Status: time.Minute, Repair: time.Hour}
	assert.Equal(t, time.Minute, c.StatusDelay())
	assert.Equal(t, time.Hour, c.RepairDelay())
}
