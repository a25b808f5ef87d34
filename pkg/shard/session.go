package shard

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/leader"
)

// session is one time of working together with others. It ends once, with a cause.
type session struct {
	*member
	main *election
	gate *Gate

	// working is the context of the work, holding of the Leases: they are held until the work has ended.
	working, holding context.Context
	stopWorking      context.CancelCauseFunc
	stopHolding      context.CancelFunc
	running          sync.WaitGroup

	acquired chan acquisition
	telling  sync.Mutex

	mu    sync.Mutex
	holds [Count]*hold
	lost  error
}

// hold is a shard that is held, or tried for.
type hold struct {
	stop     context.CancelFunc
	leaving  bool // it is being given back
	acquired bool
}

// acquisition is a shard with the hold by which it was taken: one that was lost and taken again meanwhile is another, for which
// the caches have to be waited for anew.
type acquisition struct {
	shard Shard
	hold  *hold
}

func newSession(m *member, main *election) *session {
	s := &session{member: m, main: main, gate: NewGate(), acquired: make(chan acquisition, Count)}
	s.holding, s.stopHolding = context.WithCancel(context.Background())
	return s
}

func (s *session) run(ctx context.Context, work Work) error {
	s.working, s.stopWorking = context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() { ended <- work(s.working, s.gate) }()
	s.running.Go(s.openAcquired)
	err := s.live(ended)
	s.stopWorking(err)
	if err := <-ended; err != nil {
		_ = s.fail(err)
	}
	s.stopHolding()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// live balances until the work is to end, or has.
func (s *session) live(ended chan error) error {
	tick := s.clock.NewTicker(s.Times.RetryPeriod)
	defer tick.Stop()
	ready := s.gate.ready
	for {
		select {
		case <-s.working.Done():
			return nil
		case err := <-ended:
			ended <- err // for run
			return nil
		case <-s.main.ended:
			return s.fail(cmp.Or(s.main.err, leader.ErrLost))
		case <-ready:
			ready = nil
			s.running.Go(s.announce)
		case <-s.table.changed:
		case <-tick.C():
		}
		if !s.table.permits(s.way, true) {
			holder, _ := s.table.holder(s.Main.Name)
			return s.fail(fmt.Errorf("%w: %s", ErrNotShared, holder))
		}
		if ready == nil {
			s.balance()
		}
	}
}

// fail ends the work at once, with a cause, and lets it write no more.
func (s *session) fail(err error) error {
	s.mu.Lock()
	if s.lost == nil {
		s.lost = err
	}
	s.mu.Unlock()
	s.gate.fence()
	s.stopWorking(err)
	return err
}

// announce keeps a seat, by which the others know that this one wants its share.
func (s *session) announce() {
	for s.holding.Err() == nil {
		n := s.table.seat(s.me)
		if n >= 0 {
			s.sit(leaseName(seatLease, n))
		}
		select { // all are taken, or another was quicker
		case <-s.holding.Done():
		case <-s.clock.After(s.Times.RetryPeriod):
		}
	}
}

// sit keeps a seat until the session ends, or tells that another one has it.
func (s *session) sit(name string) {
	ctx, stop := context.WithCancel(s.holding)
	defer stop()
	s.clear(ctx, name)
	won := s.stopUnlessTaken(stop, func() bool {
		holder, _ := s.table.holder(name)
		return holder == "" || holder == s.me
	})
	defer won()
	err := leader.Take(ctx, s.election(name), func(ctx context.Context) error {
		won()
		<-ctx.Done()
		return nil
	})
	if err != nil {
		_ = s.fail(err)
	}
}

// stopUnlessTaken gives up a contest that another one has won; the caller says when it has won itself.
func (s *session) stopUnlessTaken(stop func(), free func() bool) (taken func()) {
	won := make(chan struct{})
	s.running.Go(func() {
		for {
			select {
			case <-won:
				return
			case <-s.holding.Done():
				return
			case <-s.clock.After(s.Times.RetryPeriod):
			}
			if !free() {
				stop()
				return
			}
		}
	})
	return sync.OnceFunc(func() { close(won) })
}

func (s *session) election(name string) leader.Election {
	return leader.Election{Client: s.Main.Client, Namespace: s.Main.Namespace, Name: name, Identity: s.me, Times: s.Times}
}

// balance takes what is due to this replica, and gives back what is not.
func (s *session) balance() {
	take, giveBack := decide(s.me, s.table.live(s.way), s.holders())
	for _, shard := range giveBack {
		s.leave(shard)
	}
	for _, shard := range take {
		s.take(shard)
	}
}

// holders has what is tried for as held: it counts, and is not to be tried for twice. What is being given back is not free.
func (s *session) holders() [Count]string {
	holders := s.table.holders()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range s.holds {
		switch {
		case h != nil && h.leaving:
			holders[i] = "on its way"
		case h != nil:
			holders[i] = s.me
		case holders[i] == s.me: // of an earlier life
			holders[i] = ""
		}
	}
	return holders
}

func (s *session) leave(shard Shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.holds[shard]; h != nil {
		h.leaving = true
		h.stop()
	}
}

func (s *session) take(shard Shard) {
	ctx, stop := context.WithCancel(s.holding)
	h := &hold{stop: stop}
	s.mu.Lock()
	s.holds[shard] = h
	s.mu.Unlock()
	s.running.Go(func() {
		defer stop()
		s.hold(ctx, shard, h)
		s.mu.Lock()
		s.holds[shard] = nil
		s.mu.Unlock()
		s.table.signal()
	})
}

// hold tries for a shard and holds it until ctx ends.
func (s *session) hold(ctx context.Context, shard Shard, h *hold) {
	name := leaseOf(shard)
	s.clear(ctx, name)
	won := s.stopUnlessTaken(h.stop, func() bool {
		holder, _ := s.table.holder(name)
		return holder == "" || holder == s.me
	})
	defer won()
	err := leader.Take(ctx, s.election(name), func(term context.Context) error {
		won()
		s.setAcquired(h, true)
		select {
		case s.acquired <- acquisition{shard, h}:
		case <-term.Done():
		}
		<-term.Done()
		s.setAcquired(h, false)
		if ctx.Err() == nil {
			_ = s.fail(fmt.Errorf("%w %s/%s", leader.ErrLost, s.Main.Namespace, name)) // at once: what is under way must not be waited for
		}
		s.gate.close(shard)
		s.tell()
		return nil
	})
	if err != nil {
		_ = s.fail(err)
	}
}

func (s *session) setAcquired(h *hold, acquired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.acquired = acquired
}

// isSettled says whether all that is held is worked on, and nothing is on its way.
func (s *session) isSettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		if h != nil && (h.leaving || !h.acquired) {
			return false
		}
	}
	return true
}

// clear takes the name of a holder out of a Lease that has been silent for too long, so that the election need not wait for
// that once more. It is based on the version that was silent: a renewal in between makes it fail.
func (s *session) clear(ctx context.Context, name string) {
	holder, silent := s.table.holder(name)
	lease := s.table.lease(name)
	if !silent || holder == s.me || lease == nil {
		return
	}
	free := lease.DeepCopy()
	free.Spec.HolderIdentity = new(string)
	free.Spec.LeaseDurationSeconds = new(int32)
	*free.Spec.LeaseDurationSeconds = 1
	if _, err := s.client.CoordinationV1().Leases(free.Namespace).Update(ctx, free, metav1.UpdateOptions{}); err == nil {
		logrus.Infof("Lease %s: its holder %s was not heard of for %s", name, holder, s.Times.LeaseDuration)
	}
}

// openAcquired opens the Gate to the shards that were taken, some at a time: to wait for the caches costs the same for one
// shard and for all.
func (s *session) openAcquired() {
	for {
		var some [Count]*hold
		select {
		case <-s.holding.Done():
			return
		case a := <-s.acquired:
			some[a.shard] = a.hold
		}
		for more := true; more; {
			select {
			case a := <-s.acquired:
				some[a.shard] = a.hold
			case <-s.clock.After(gather):
				more = false
			}
		}
		if !s.caughtUp() {
			return
		}
		s.open(some)
	}
}

// caughtUp waits for the caches; false means that the work has ended before.
func (s *session) caughtUp() bool {
	for s.working.Err() == nil {
		err := s.gate.catchUp(s.working)
		if err == nil {
			return true
		}
		logrus.Warnf("Waiting for the caches before shards are worked on: %v; trying again", err)
		select {
		case <-s.working.Done():
		case <-s.clock.After(s.Times.RetryPeriod):
		}
	}
	return false
}

// gather is how long more shards are waited for that are taken at the same time.
const gather = 50 * time.Millisecond

// open leaves out what was lost or given back meanwhile, also when it was taken again since.
func (s *session) open(some [Count]*hold) {
	var still Set
	s.mu.Lock()
	for shard, h := range some {
		still[shard] = h != nil && h == s.holds[shard] && h.acquired
	}
	s.gate.open(still)
	s.mu.Unlock()
	s.gate.tell(still)
	s.tell()
}

// tell tells one number after the other, and in the log only the one that comes to rest.
func (s *session) tell() {
	s.telling.Lock()
	defer s.telling.Unlock()
	held := s.gate.held()
	if s.isSettled() {
		logrus.Infof("This hub works on %d of %d shards", held, Count)
	}
	if s.OnHeld != nil {
		s.OnHeld(held)
	}
}
