package expectations

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func object(uid types.UID, version string) metav1.Object {
	return &metav1.ObjectMeta{UID: uid, ResourceVersion: version}
}

func TestIsStale(t *testing.T) {
	for name, row := range map[string]struct {
		written, cached string
		stale           bool
	}{
		"the version before":               {"10", "9", true},
		"numbers are not compared as text": {"999", "1000", false},
		"the version written":              {"10", "10", false},
		"a later version":                  {"9", "10", false},
		"a version that is not a number":   {"10", "x", false},
		"no version":                       {"10", "", false},
		"nothing comparable was written":   {"", "10", false},
	} {
		t.Run(name, func(t *testing.T) {
			var e Expectations
			e.Wrote(object("uid", row.written))
			assert.Equal(t, row.stale, e.IsStale(object("uid", row.cached)))
			assert.False(t, e.IsStale(object("other", "1")), "an object of the same name that was created again")
		})
	}
	t.Run("a write with an unknown outcome: until the cache shows a later version", func(t *testing.T) {
		var e Expectations
		e.Attempted(object("uid", "5"))
		assert.True(t, e.IsStale(object("uid", "4")))
		assert.True(t, e.IsStale(object("uid", "5")))
		assert.False(t, e.IsStale(object("uid", "6")))
	})
	t.Run("a look-up removes nothing", func(t *testing.T) {
		var e Expectations
		e.Wrote(object("uid", "5"))
		assert.False(t, e.IsStale(object("uid", "5")))
		assert.True(t, e.IsStale(object("uid", "4")), "another worker may still hold the older version")
	})
	t.Run("the newer of two writes counts, in whatever order they are recorded", func(t *testing.T) {
		var e Expectations
		e.Wrote(object("uid", "6"))
		e.Wrote(object("uid", "5"))
		assert.True(t, e.IsStale(object("uid", "5")))
	})
}

func TestExpectations(t *testing.T) {
	start := func(timeout time.Duration) (*Expectations, *clocktesting.FakeClock) {
		clock := clocktesting.NewFakeClock(time.Now())
		return &Expectations{Clock: clock, Timeout: timeout}, clock
	}
	t.Run("until the cache shows the effect", func(t *testing.T) {
		e, _ := start(0)
		assert.False(t, e.IsExpected("x"))
		e.Expect("x")
		assert.True(t, e.IsExpected("x"))
		e.Observed("x")
		assert.False(t, e.IsExpected("x"))
	})
	for name, timeout := range map[string]time.Duration{"until the timeout": 0, "until a timeout of its own": time.Hour} {
		t.Run(name, func(t *testing.T) {
			e, clock := start(timeout)
			e.Expect("x")
			e.Wrote(object("uid", "5"))
			clock.Step(max(timeout, Timeout) - time.Nanosecond)
			assert.True(t, e.IsExpected("x"))
			assert.True(t, e.IsStale(object("uid", "4")))
			clock.Step(time.Nanosecond)
			assert.False(t, e.IsExpected("x"))
			assert.False(t, e.IsStale(object("uid", "4")))
		})
	}
	t.Run("entries of deleted objects do not pile up", func(t *testing.T) {
		e, clock := start(0)
		for i := range 10 * sweepMin {
			e.Expect(fmt.Sprint(i))
			e.Wrote(object(types.UID(fmt.Sprint("uid-", i)), "5"))
			clock.Step(Timeout)
		}
		assert.LessOrEqual(t, len(e.entries), 2*sweepMin)
	})
}
