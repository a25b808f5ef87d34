package shard

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// Names of the Leases of shards, and of the seats by which replicas tell each other that they are there. Both are as many as
// Count, so that none is ever left over.
const (
	shardLease = "fleet-shard-"
	seatLease  = "fleet-seat-"
)

func leaseOf(s Shard) string { return leaseName(shardLease, int(s)) }

func leaseName(prefix string, n int) string {
	number := strconv.Itoa(n)
	if n < 10 { //nolint:mnd // so that they are listed in their order
		number = "0" + number
	}
	return prefix + number
}

// table is what this process knows of the Leases. When one was last renewed is told by when it was seen to change, by this
// process's own clock: those of others may be wrong.
type table struct {
	clock    clock.PassiveClock
	patience time.Duration // how long a holder may be silent
	main     string        // the name of the main Lease
	changed  chan struct{}

	mu     sync.Mutex
	leases map[string]entry
}

type entry struct {
	object *coordinationv1.Lease
	seen   time.Time
}

func newTable(c clock.PassiveClock, main string, patience time.Duration) *table {
	return &table{clock: c, patience: patience, main: main, changed: make(chan struct{}, 1), leases: map[string]entry{}}
}

func holderOf(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return ptr.Deref(l.Spec.HolderIdentity, "")
}

// put notes a Lease, and tells of it where its holder is another one. Renewals, which come all the time, tell nobody anything.
func (t *table) put(l *coordinationv1.Lease) {
	t.mu.Lock()
	before, known := t.leases[l.Name]
	if known && before.object.ResourceVersion == l.ResourceVersion {
		t.mu.Unlock()
		return
	}
	t.leases[l.Name] = entry{object: l, seen: t.clock.Now()}
	t.mu.Unlock()
	if holderOf(before.object) != holderOf(l) {
		t.signal()
	}
}

// OnAdd notes a Lease.
func (t *table) OnAdd(object any, _ bool) {
	if l, ok := object.(*coordinationv1.Lease); ok {
		t.put(l)
	}
}

// OnUpdate notes a Lease.
func (t *table) OnUpdate(_, object any) { t.OnAdd(object, false) }

// OnDelete drops a Lease.
func (t *table) OnDelete(object any) {
	if name, err := cache.DeletionHandlingObjectToName(object); err == nil {
		t.drop(name.Name)
	}
}

func (t *table) drop(name string) {
	t.mu.Lock()
	delete(t.leases, name)
	t.mu.Unlock()
	t.signal()
}

// signal leaves a signal for later when nobody takes it now; one is as good as many.
func (t *table) signal() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// holder is who holds a Lease, "" when it is free, and whether that one has been silent for too long.
func (t *table) holder(name string) (holder string, silent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[name]
	holder = holderOf(e.object)
	return holder, holder != "" && t.clock.Since(e.seen) >= t.patience
}

func (t *table) lease(name string) *coordinationv1.Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leases[name].object
}

// live are those who have a seat and are to be heard, and share in the same way.
func (t *table) live(way string) (names []string) {
	for n := range Count {
		name, silent := t.holder(leaseName(seatLease, n))
		if name != "" && !silent && wayOf(name) == way && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// seat is a seat that me may take: its own of an earlier life, or one that nobody is heard from; -1 when there is none.
func (t *table) seat(me string) int {
	free := -1
	for n := range Count {
		switch holder, silent := t.holder(leaseName(seatLease, n)); {
		case holder == me:
			return n
		case free < 0 && (holder == "" || silent):
			free = n
		}
	}
	return free
}

// holders are who holds each shard; "" is nobody, or one that is silent.
func (t *table) holders() (holders [Count]string) {
	for s := range holders {
		if holder, silent := t.holder(leaseOf(Shard(s))); !silent {
			holders[s] = holder
		}
	}
	return holders
}

const (
	marked = ";shares="
	scheme = "16-fnv1a" // the count and the hash: who has others does not share with us
)

// way is how processes of a release share. Those of two releases do not: each may do something in its own way.
func way(release string) string { return scheme + "-" + release }

// named is what a process that shares writes into a Lease as its holder. It says so there, and not beside it, for whoever
// takes a Lease writes its holder anew, and leaves everything else as it was.
func named(identity, way string) string { return identity + marked + way }

func wayOf(holder string) string {
	_, way, _ := strings.Cut(holder, marked)
	return way
}

// permits says whether shards may be held: nobody who does not share, or does so in another way, holds the main Lease.
// Before anybody has taken it nothing is permitted; while it is free between two who share, all stays as it is.
func (t *table) permits(way string, before bool) bool {
	holder, _ := t.holder(t.main)
	if holder == "" {
		return before
	}
	return wayOf(holder) == way
}
