package figures

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestQuantilesOfTimes(t *testing.T) {
	assert.Zero(t, Times(nil).Quantile(.5))
	all := Times{3, 1, 2, 5, 4}
	assert.Equal(t, time.Duration(3), all.Quantile(.5))
	assert.Equal(t, time.Duration(5), all.Quantile(.99))
	assert.Equal(t, time.Duration(5), all.Quantile(1))
	assert.Equal(t, time.Duration(1), all.Quantile(0))
	assert.Equal(t, Times{3, 1, 2, 5, 4}, all, "the order is not changed")
}

func TestUnits(t *testing.T) {
	assert.InDelta(t, 1.5, Millis(1500*time.Microsecond), 0)
	assert.InDelta(t, 50, PerSecond(100, 2*time.Second), 0)
	assert.Zero(t, PerSecond(100, 0))
	assert.InDelta(t, 2.5, Each(5, 2), 0)
	assert.InDelta(t, 1.5, MiB(3<<19), 0)
}
