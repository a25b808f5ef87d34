package shard

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

const patience = 10 * time.Second

type scene struct {
	*table
	clock *clocktesting.FakePassiveClock
	last  int
}

func newScene() *scene {
	c := clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	return &scene{table: newTable(c, "main", patience), clock: c}
}

// renew is a write of a Lease.
func (s *scene) renew(name, holder string) {
	s.last++
	s.put(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(s.last)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	})
}

func (s *scene) pass(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

func (s *scene) wasTold() bool {
	select {
	case <-s.changed:
		return true
	default:
		return false
	}
}

func TestAHolderIsSilentAfterTheLeaseDuration(t *testing.T) {
	s := newScene()
	s.renew("fleet-shard-03", "a")
	assert.True(t, s.wasTold())
	assert.Equal(t, "a", s.holders()[3])

	s.pass(patience - time.Second)
	s.renew("fleet-shard-03", "a")
	assert.False(t, s.wasTold(), "a renewal tells nobody anything")
	s.pass(patience - time.Second)
	s.put(s.lease("fleet-shard-03")) // the informer lists again: that is no renewal
	assert.Equal(t, "a", s.holders()[3])
	s.pass(time.Second)
	assert.Empty(t, s.holders()[3])
	holder, silent := s.holder("fleet-shard-03")
	assert.Equal(t, "a", holder)
	assert.True(t, silent)

	s.drop("fleet-shard-03")
	assert.True(t, s.wasTold())
	holder, silent = s.holder("fleet-shard-03")
	assert.Empty(t, holder)
	assert.False(t, silent, "what is free is not silent")
}

func TestThoseWithASeatAreLive(t *testing.T) {
	s, mine := newScene(), way("v1")
	assert.Equal(t, 0, s.seat("me"))
	s.renew("fleet-seat-00", named("a", mine))
	s.renew("fleet-seat-01", named("old", way("v0")))
	s.renew("fleet-seat-02", "b")
	s.renew("fleet-seat-03", named("c", mine))
	s.renew("fleet-seat-04", named("c", mine))
	s.renew("fleet-shard-05", named("d", mine))
	assert.Equal(t, []string{named("a", mine), named("c", mine)}, s.live(mine), "of this release, once, and with a seat")

	assert.Equal(t, 5, s.seat("me"), "the first that is free")
	assert.Equal(t, 3, s.seat(named("c", mine)), "its own")
	s.pass(patience)
	s.renew("fleet-seat-00", named("a", mine))
	assert.Equal(t, []string{named("a", mine)}, s.live(mine))
	assert.Equal(t, 1, s.seat("me"), "one whose holder is silent")
	for n := range Count {
		s.renew(leaseName(seatLease, n), "x")
	}
	assert.Equal(t, -1, s.seat("me"))
}

func TestWhoHoldsTheMainLeaseSaysWhetherShardsMayBeHeld(t *testing.T) {
	mine := way("v1")
	for name, test := range map[string]struct {
		holder       string
		before, want bool
	}{
		"nobody has taken it":                      {"", false, false},
		"it is free between two who share":         {"", true, true},
		"one of us":                                {named("a", mine), false, true},
		"one who does not share":                   {"fleet-controller-abc", true, false},
		"another release that shares":              {named("a", way("v2")), true, false},
		"another scheme":                           {"a;shares=32-fnv1a-v1", true, false},
		"one who is called like that but does not": {"shares=16-fnv1a-v1", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.renew("main", test.holder)
			assert.Equal(t, test.want, s.permits(mine, test.before))
		})
	}
}

func TestLeasesAreNamedInTheirOrder(t *testing.T) {
	assert.Equal(t, "fleet-shard-00", leaseOf(0))
	assert.Equal(t, "fleet-shard-09", leaseOf(9))
	assert.Equal(t, "fleet-shard-15", leaseOf(15))
}
