package writes

import (
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// PendingMax is how long the cache may take to see what the hub wrote. After that it is written again, if need be.
const PendingMax = 10 * time.Second

// sweepMin is how many may be left whose event came before they were noted; one of them costs a few bytes.
const sweepMin = 64

// Pending remembers what was just written and has not been seen in a cache, so that it is not written twice.
type Pending struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	until map[string]time.Time
	sweep int // how many make it worth while to look for those whose time is over
}

// NewPending remembers nothing yet.
func NewPending(c clock.PassiveClock) *Pending {
	return &Pending{clock: c, until: map[string]time.Time{}}
}

// Add notes that something was written.
func (p *Pending) Add(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.until[what] = now.Add(PendingMax)
	if len(p.until) > p.sweep {
		maps.DeleteFunc(p.until, func(_ string, until time.Time) bool { return !now.Before(until) })
		p.sweep = 2*len(p.until) + sweepMin
	}
}

// Has says whether it was written a moment ago.
func (p *Pending) Has(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, known := p.until[what]
	if known && !p.clock.Now().Before(until) {
		delete(p.until, what)
		return false
	}
	return known
}

// Forget is called when a cache has seen it.
func (p *Pending) Forget(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.until, what)
}
