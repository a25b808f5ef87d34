package shard

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
)

// Gate decides which objects this process works on now. It knows what is under way for each shard, so that a shard is given
// back when that has ended. A nil Gate is that of a hub that shares with nobody: all is its own.
type Gate struct {
	fenced atomic.Bool
	ready  chan struct{}

	mu      sync.Mutex
	isReady bool
	shards  [Count]state
	catchUp func(context.Context) error
	taken   []func(Set)
	left    []func(Set)
}

type state struct {
	open     bool
	underWay int
	idle     chan struct{} // closed when nothing is under way any more; nil while nobody waits for that
}

// NewGate makes a Gate behind which nothing is anybody's own yet.
func NewGate() *Gate {
	return &Gate{ready: make(chan struct{}), catchUp: func(context.Context) error { return nil }}
}

// Enter says whether the shard is this process's. If so, work on it is under way until leave is called.
func (g *Gate) Enter(s Shard) (leave func(), mine bool) {
	if g == nil {
		return func() {}, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shards[s].open {
		return nil, false
	}
	g.shards[s].underWay++
	return func() { g.leave(s) }, true
}

func (g *Gate) leave(s Shard) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := &g.shards[s]
	of.underWay--
	if of.underWay == 0 && of.idle != nil {
		close(of.idle)
		of.idle = nil
	}
}

// Holds says whether the shard is this process's at the moment, for what needs no more than that.
func (g *Gate) Holds(s Shard) bool {
	leave, mine := g.Enter(s)
	if mine {
		leave()
	}
	return mine
}

// Shares says whether there may be others.
func (g *Gate) Shares() bool { return g != nil }

// OnTake has f called with shards that are this process's from now on, to look at all objects they have. It is called before
// Ready, and f must not block.
func (g *Gate) OnTake(f func(Set)) {
	if g != nil {
		g.taken = append(g.taken, f)
	}
}

// OnLeave has f called with shards that are this process's no more, to end what was begun for their objects beside the passes:
// the shards are held until f returns. It is called before Ready.
func (g *Gate) OnLeave(f func(Set)) {
	if g != nil {
		g.left = append(g.left, f)
	}
}

// OnCatchUp has f called before a shard is worked on, to wait until the caches have what the holder before wrote. It is called
// before Ready.
func (g *Gate) OnCatchUp(f func(context.Context) error) {
	if g != nil {
		g.catchUp = f
	}
}

// Ready says that the caches are filled: shards may be taken.
func (g *Gate) Ready() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isReady {
		g.isReady = true
		close(g.ready)
	}
}

// open begins the work on shards; the objects they have are to be told of next.
func (g *Gate) open(shards Set) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.shards {
		g.shards[s].open = g.shards[s].open || shards[s]
	}
}

func (g *Gate) tell(shards Set) {
	for _, f := range g.taken {
		f(shards)
	}
}

// close ends the work on a shard: it returns when nothing is under way any more.
func (g *Gate) close(s Shard) {
	g.mu.Lock()
	of := &g.shards[s]
	of.open = false
	var idle chan struct{}
	if of.underWay > 0 {
		if of.idle == nil {
			of.idle = make(chan struct{})
		}
		idle = of.idle
	}
	g.mu.Unlock()
	if idle != nil {
		<-idle // first: a pass may begin something
	}
	var set Set
	set[s] = true
	for _, f := range g.left {
		f(set)
	}
}

// held are the shards that are open.
func (g *Gate) held() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.shards {
		if s.open {
			n++
		}
	}
	return n
}

// errFenced says why a request was not sent.
var errFenced = errors.New("this process has lost its Leases: it writes no more")

// fence lets no write through any more: a pass that runs when the Leases are lost must not go on with its next step.
func (g *Gate) fence() { g.fenced.Store(true) }

// Wrap is for the hub's own clients.
func (g *Gate) Wrap(next http.RoundTripper) http.RoundTripper {
	if g == nil {
		return next
	}
	return fence{g, next}
}

type fence struct {
	gate *Gate
	next http.RoundTripper
}

// RoundTrip sends the request, unless it is a write and the Leases are lost.
func (f fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet && f.gate.fenced.Load() {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errFenced
	}
	return f.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go reach the transport, to close its connections.
func (f fence) WrappedRoundTripper() http.RoundTripper { return f.next }
