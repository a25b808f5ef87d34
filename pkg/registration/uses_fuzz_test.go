package registration

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-fleet/muster/internal/fuzz"
)

func FuzzUsesAreCountedOnceWhateverTheOrder(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var in struct {
			Uses   Uses
			Asking []Use
		}
		identities(seed, &in)
		in.Uses.Count = max(in.Uses.Count%8, 0)
		after, added, waiting := in.Uses.Add(in.Asking)
		assert.Equal(t, in.Uses.Count+int64(len(added)), after.Count)
		assert.Empty(t, waiting, "there is a place for so few")
		for _, use := range added {
			assert.NotContains(t, in.Uses.Pending, use.UID)
			assert.Equal(t, UseCounted, after.State(use.UID, ""))
		}
		if in.Uses.Limit != nil && in.Uses.Count <= int64(max(*in.Uses.Limit, 0)) {
			assert.LessOrEqual(t, after.Count, int64(max(*in.Uses.Limit, 0)))
		}
		other, _, _ := in.Uses.Add(fuzz.Shuffled(seed, in.Asking))
		assert.Equal(t, after, other)
	})
}
