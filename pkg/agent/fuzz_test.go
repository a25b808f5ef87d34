package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-fleet/muster/pkg/credential"
)

// A token is what somebody else has written into a Secret: whatever it says, it is renewed within its life or not at all.
func FuzzATokenIsRenewedWithinItsLifeOrNotAtAll(f *testing.F) {
	f.Add(jwtOf("uid", noon, noon.Add(day), 1))
	f.Add(jwtOf("uid", noon, noon, 1))
	f.Add(jwtOf("uid", noon.Add(day), noon, 1))
	f.Add(jwtOf("uid", time.Time{}, noon, 1))
	f.Add(jwtOf("uid", noon, noon.Add(credential.LongLived), 1))
	f.Add(oldToken)
	f.Add("eyJhbGciOiJub25lIn0.eyJpYXQiOi0xZTMwLCJleHAiOjFlMzB9.")
	f.Fuzz(func(t *testing.T, token string) {
		x, limited := termOf(token)
		if !limited {
			return
		}
		moment := x.renewal(DefaultTiming().RenewAfter)
		assert.True(t, moment.After(x.issued) && moment.Before(x.expires))
		assert.True(t, x.alarm(DefaultTiming().RenewAfter).Before(x.expires))
		assert.Less(t, x.life(), renewable)
	})
}
