package clusterimport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/controllers/app"
)

// Passes, ends of calls, changes of Clusters and failures come in a random order. A pass runs only if something has enqueued its Cluster, so a lost
// wake-up leaves a call that is wanted and never made.
func TestMemberCalls_random(t *testing.T) {
	random := sample.Random(t)
	for round := range 40 {
		s := newSimulation(t, random)
		for range 500 {
			s.step()
			if t.Failed() {
				require.FailNow(t, "stopped", "round %d", round)
			}
		}
		s.finish()
	}
}

// simulation are memberCalls with few slots, and the state of the Clusters and of the work queue. Of the goroutines of calls only the one that the
// simulation ends runs, and the simulation waits for it.
type simulation struct {
	*testing.T
	*rand.Rand
	*memberCalls
	clock    *clocktesting.FakeClock
	enqueued chan types.NamespacedName

	clusters []types.NamespacedName
	queue    []types.NamespacedName             // keys that the work queue has
	later    map[types.NamespacedName]time.Time // when keys are added to the queue
	current  types.NamespacedName               // the Cluster over which a pass runs
	wanted   map[callKey]string                 // the inputs of the calls that Clusters need
	running  map[callKey]chan *failure          // takes the result of a call
	waiting  map[*slots]map[string][]callKey    // after the step before
}

func newSimulation(t *testing.T, random *rand.Rand) *simulation {
	ctx, stop := context.WithCancel(t.Context())
	s := &simulation{
		T: t, Rand: random, clock: clocktesting.NewFakeClock(start), enqueued: make(chan types.NamespacedName, 4096),
		later: map[types.NamespacedName]time.Time{}, wanted: map[callKey]string{}, running: map[callKey]chan *failure{}, waiting: map[*slots]map[string][]callKey{},
	}
	s.memberCalls = newMemberCalls(ctx, s.clock, app.Backoff{Base: time.Second, Max: time.Minute}, func(key types.NamespacedName) { s.enqueued <- key })
	s.first, s.retries, s.removals = newSlots(4, 2), newSlots(2, 1), newSlots(2, 1)
	t.Cleanup(func() { stop(); s.wait() })
	for i := range 24 {
		// Half of the Clusters are in one workspace.
		s.clusters = append(s.clusters, types.NamespacedName{Namespace: fmt.Sprint("ws-", max(0, i%8-4)), Name: fmt.Sprint(i)})
	}
	return s
}

func (s *simulation) step() {
	cluster := s.clusters[s.IntN(len(s.clusters))]
	switch s.IntN(16) {
	case 0, 1, 2, 3, 4: // its spec changes
		key := callKey{cluster, []purpose{installing, installing, removing}[s.IntN(3)]}
		s.wanted[key] = fmt.Sprint(s.IntN(3))
		if s.IntN(4) == 0 {
			delete(s.wanted, key)
		}
		s.add(cluster)
	case 5:
		if s.IntN(2) == 0 {
			s.forget(cluster)
		}
	case 6:
		s.advance(time.Duration(s.IntN(10)) * time.Second)
	case 7, 8, 9:
		s.endAny()
	default:
		if len(s.queue) > 0 {
			s.pass(s.queue[s.IntN(len(s.queue))], true)
		}
	}
	s.check()
}

// pass is a pass over a Cluster that the work queue has. With faults, it may end early, fail or panic, and calls end meanwhile.
func (s *simulation) pass(cluster types.NamespacedName, hasFaults bool) {
	const early, fails, panics = 0, 1, 2
	fault := -1
	if hasFaults {
		fault = s.IntN(12)
	}
	meanwhile := func() {
		if hasFaults && s.IntN(3) == 0 {
			s.endAny()
		}
	}
	s.queue = slices.DeleteFunc(s.queue, func(other types.NamespacedName) bool { return other == cluster })
	s.current = cluster
	end := s.beginPass(cluster)
	meanwhile()
	for _, key := range []callKey{{cluster, installing}, {cluster, removing}} {
		if inputs := s.wanted[key]; inputs != "" && fault != early {
			s.ask(key, inputs, fault == fails || fault == panics)
			meanwhile()
		}
	}
	if fault != panics && fault != early {
		s.withdrawUnbegun(cluster, fault != fails)
	}
	meanwhile()
	end()
	s.current = types.NamespacedName{}
	if fault == early || fault == fails || fault == panics {
		s.repeat(cluster, s.clock.Now().Add(time.Duration(s.IntN(5))*time.Second))
	}
}

// ask reserves a call, and begins it if it has a slot, unless the pass cannot prepare it.
func (s *simulation) ask(key callKey, inputs string, isUnprepared bool) {
	before, workspace := s.last(key), key.cluster.Namespace
	queues := map[*slots]int{s.first: len(s.first.waiting[workspace]), s.retries: len(s.retries.waiting[workspace]), s.removals: len(s.removals.waiting[workspace])}
	call := s.reserve(key, inputs)
	s.check()
	if out, failed := call.failed(s.clock.Now()); failed && out.After > 0 {
		s.repeat(key.cluster, s.clock.Now().Add(out.After))
	}
	if call.state != preparing {
		return
	}
	if before.state != offered {
		assert.Zero(s, queues[call.slots], "%v overtakes the queue of its workspace", key)
	}
	if isUnprepared {
		return
	}
	assert.NotContains(s, s.running, key)
	result := make(chan *failure)
	s.running[key] = result
	s.begin(key, func(ctx context.Context) *failure {
		select {
		case problem := <-result:
			return problem
		case <-ctx.Done():
			return failuref("Canceled", "dropped")
		}
	})
	s.check()
}

// endAny ends a call that runs.
func (s *simulation) endAny() {
	keys := slices.SortedFunc(func(yield func(callKey) bool) {
		for key := range s.running {
			if !yield(key) {
				return
			}
		}
	}, func(a, b callKey) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	if len(keys) == 0 {
		return
	}
	var problem *failure
	if s.IntN(3) == 0 {
		problem = failuref("Broken", "it is broken")
	}
	s.end(keys[s.IntN(len(keys))], problem)
}

func (s *simulation) end(key callKey, problem *failure) {
	s.running[key] <- problem
	s.ended(key)
}

// ended waits for the end of a call, which enqueues the Cluster.
func (s *simulation) ended(key callKey) {
	delete(s.running, key)
	for s.last(key).state == running {
		select {
		case cluster := <-s.enqueued:
			s.add(cluster)
		case <-time.After(patience):
			require.FailNow(s, "the end of the call enqueues nothing")
		}
	}
	s.check()
}

// forget is the pass over a Cluster that was deleted.
func (s *simulation) forget(cluster types.NamespacedName) {
	for _, purpose := range purposes {
		key := callKey{cluster, purpose}
		delete(s.wanted, key)
		s.drop(key)
		if s.running[key] != nil {
			s.ended(key)
		}
		assert.Equal(s, absent, s.last(key).state)
	}
}

// add adds a Cluster to the work queue, which has each key once.
func (s *simulation) add(cluster types.NamespacedName) {
	if !slices.Contains(s.queue, cluster) {
		s.queue = append(s.queue, cluster)
	}
}

func (s *simulation) repeat(cluster types.NamespacedName, at time.Time) {
	if earlier, exists := s.later[cluster]; !exists || at.Before(earlier) {
		s.later[cluster] = at
	}
}

func (s *simulation) advance(by time.Duration) {
	s.clock.Step(by)
	for _, cluster := range s.clusters {
		if at, exists := s.later[cluster]; exists && !s.clock.Now().Before(at) {
			delete(s.later, cluster)
			s.add(cluster)
		}
	}
}

// check checks what is true at any time.
func (s *simulation) check() {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for isEmpty := false; !isEmpty; {
		select {
		case cluster := <-s.enqueued:
			s.add(cluster)
		default:
			isEmpty = true
		}
	}
	for _, pool := range []*slots{s.first, s.retries, s.removals} {
		used, queued, taken := map[string]int{}, 0, 0
		for key, call := range s.byKey {
			switch {
			case call.slots != pool:
			case call.state == waiting:
				queued++
				assert.Contains(s, pool.waiting[key.cluster.Namespace], key)
			case call.state == offered && s.current != key.cluster:
				assert.Contains(s, s.queue, key.cluster, "no pass comes for the slot of %v", key)
			case call.state == preparing:
				assert.Equal(s, s.current, key.cluster, "the pass that prepares %v has ended", key)
			}
			if call.slots == pool && (call.state == offered || call.state == preparing || call.state == running) {
				taken++
				used[key.cluster.Namespace]++
			}
		}
		assert.Equal(s, used, pool.used)
		assert.Equal(s, taken, pool.taken)
		assert.LessOrEqual(s, taken, pool.total)
		now := map[string][]callKey{}
		for workspace, calls := range pool.waiting {
			queued -= len(calls)
			assert.GreaterOrEqual(s, used[workspace], min(pool.perWorkspace, pool.total-taken), "a call of %s waits although a slot is free", workspace)
			now[workspace] = slices.Clone(calls)
		}
		assert.Zero(s, queued)
		for workspace, count := range used {
			assert.LessOrEqual(s, count, pool.perWorkspace, workspace)
		}
		for workspace, before := range s.waiting[pool] {
			s.checkOrder(before, now[workspace])
		}
		s.waiting[pool] = now
	}
}

// checkOrder checks that no call of a workspace was offered a slot before one that came earlier.
func (s *simulation) checkOrder(before, now []callKey) {
	mustWait := false
	for _, key := range before {
		call := s.byKey[key]
		if mustWait && call != nil && call.state == offered {
			assert.Fail(s, "a call has overtaken another one of its workspace", "%v", key)
		}
		mustWait = mustWait || slices.Contains(now, key)
	}
}

// finish lets all calls succeed. Each call that is wanted must have been made in the end.
func (s *simulation) finish() {
	for range 10_000 {
		switch {
		case len(s.queue) > 0:
			s.pass(s.queue[0], false)
		case len(s.running) > 0:
			for key := range s.running {
				s.end(key, nil)
				break
			}
		case len(s.later) > 0:
			s.advance(time.Minute)
		default:
			for key, inputs := range s.wanted {
				call := s.last(key)
				assert.Equal(s, ended, call.state, "%v was never made", key)
				assert.Equal(s, inputs, call.inputs)
				assert.Nil(s, call.failure)
			}
			for _, pool := range []*slots{s.first, s.retries, s.removals} {
				assertUnused(s.T, pool)
			}
			return
		}
		s.check()
	}
	require.FailNow(s, "it does not come to an end")
}
