package await

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var pace = Pace{First: 100 * time.Millisecond, Most: time.Second}

func TestPause(t *testing.T) {
	for waited, pause := range map[time.Duration]time.Duration{
		0: pace.First, time.Second: pace.First, 4 * time.Second: 400 * time.Millisecond, time.Minute: pace.Most,
	} {
		assert.Equal(t, pause, pace.pause(waited), waited)
	}
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		require.NoError(t, pace.Until(t.Context(), func(context.Context) (bool, string) {
			looks++
			return looks == 3, "not yet"
		}))
		assert.Equal(t, 3, looks)
	})
}

func TestUntilError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		err := pace.Until(ctx, func(ctx context.Context) (bool, string) {
			if time.Sleep(time.Second); ctx.Err() != nil {
				return false, "cut off"
			}
			return false, "two of three"
		})
		assert.EqualError(t, err, "waited 30s; last state: two of three")
	})
}
