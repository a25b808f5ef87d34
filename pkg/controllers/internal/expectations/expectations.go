// Package expectations answers one question: has the cache caught up with the writes of this controller?
//
// A write returns before the informer delivers its event. A pass that runs in between reads the old state from the cache; it
// would repeat the write, or fail with a conflict. So a controller records an expectation after each write that it must not
// repeat, and consults it when the cache shows something else:
//
//   - Wrote(object) after an update or a patch: IsStale reports whether an object from the cache is older than that version.
//     The handler then returns, because the event of the write is on its way and enqueues the object again.
//   - Attempted(object) before an update or a patch that names the version of the object, and whose outcome may stay unknown, for
//     example after a timeout: IsStale reports whether an object from the cache is not newer than that version.
//   - Expect(key) after a create or a delete: IsExpected reports whether the cache may still lack the object of that name, or
//     still have the object of that UID. Observed(key) ends the expectation as soon as the cache shows the effect. Wrote and
//     Attempted expect the UID of their object as well, for IsExpected.
//
// An expectation also ends after the timeout: the object may be deleted again before the cache has received it, and then there is no
// event. The write may then be repeated; all writes of the hub are safe to repeat. Look-ups never remove entries; expired ones are
// removed when new ones are recorded.
//
// The expectations of the Kubernetes controllers only count events, which is not enough to recognize a version. MutationCache of
// client-go keeps whole objects, no more than 100 of them, and cannot express a deletion.
package expectations

import (
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
)

// Timeout is the time after which an expectation ends although the cache never met it.
const Timeout = 10 * time.Second

// sweepMin is the number of entries below which expired ones are not removed. An entry needs some 150 bytes.
const sweepMin = 64

// Expectations has the expectations of one controller about the objects of one kind. The zero value is ready to use.
type Expectations struct {
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Timeout defaults to the constant of that name.
	Timeout time.Duration

	mu      sync.Mutex
	entries map[string]expectation
	sweepAt int // the number of entries at which expired ones are removed
}

type expectation struct {
	version string // of Wrote and Attempted; empty for Expect
	later   bool   // of Attempted: the cache has to show a version after this one
	until   time.Time
}

// New returns Expectations with this clock.
func New(c clock.PassiveClock) *Expectations { return &Expectations{Clock: c} }

// Wrote expects the cache to show the object at the version that a write returned, or at a later one.
func (e *Expectations) Wrote(object metav1.Object) {
	e.record(string(object.GetUID()), expectation{version: object.GetResourceVersion()})
}

// Attempted expects the cache to show the object at a later version than this one, which a write names. A later version shows the
// outcome: either it is the result of that write, or that write can no longer succeed.
func (e *Expectations) Attempted(object metav1.Object) {
	e.record(string(object.GetUID()), expectation{version: object.GetResourceVersion(), later: true})
}

// IsStale reports whether the object, as the cache has it, may lack the last write: it is older than the version of Wrote, or not newer than
// that of Attempted. A version that cannot be compared is not stale.
func (e *Expectations) IsStale(object metav1.Object) bool {
	expected, found := e.find(string(object.GetUID()))
	version := object.GetResourceVersion()
	return found && (isOlder(version, expected.version) || expected.later && version == expected.version)
}

// Expect expects the cache to show the effect of a create or a delete that the key names.
func (e *Expectations) Expect(key string) { e.record(key, expectation{}) }

// IsExpected reports whether the cache may not show the effect of that key yet.
func (e *Expectations) IsExpected(key string) bool {
	_, found := e.find(key)
	return found
}

// Observed ends the expectation: the cache shows the effect.
func (e *Expectations) Observed(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.entries, key)
}

func (e *Expectations) record(key string, x expectation) {
	now := e.now()
	timeout := e.Timeout
	if timeout == 0 {
		timeout = Timeout
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.entries == nil {
		e.entries = map[string]expectation{}
	}
	if last := e.entries[key]; now.Before(last.until) && isOlder(x.version, last.version) {
		return // two writes of one object are recorded in the wrong order
	}
	x.until = now.Add(timeout)
	e.entries[key] = x
	if len(e.entries) > e.sweepAt {
		maps.DeleteFunc(e.entries, func(_ string, x expectation) bool { return !now.Before(x.until) })
		e.sweepAt = 2*len(e.entries) + sweepMin
	}
}

func (e *Expectations) find(key string) (expectation, bool) {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	x, found := e.entries[key]
	return x, found && now.Before(x.until)
}

func (e *Expectations) now() time.Time {
	if e.Clock == nil {
		return clock.RealClock{}.Now()
	}
	return e.Clock.Now()
}

func isOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
