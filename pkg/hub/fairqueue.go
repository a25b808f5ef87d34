package hub

import (
	"container/heap"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// fairQueue decides the order of a work queue: the next key is from the namespace with the fewest running passes; of several such namespaces, from
// the one that has waited longest. The keys of one namespace are first in, first out. A namespace gets no further worker while it has as many as are
// free, so that its passes cannot occupy all of them: with 100 workers, one namespace has up to 50 passes, and a second one up to 25 more.
// Objects without a namespace count as one namespace.
//
// It implements workqueue.Queue, which has no method for the end of a pass: the controller calls done.
type fairQueue struct {
	workers int

	mu         sync.Mutex
	running    int // number of running passes
	keys       int // number of waiting keys
	namespaces map[string]*namespaceQueue
	waiting    turns
	lastTurn   int // the turn that was assigned last
}

// namespaceQueue is a namespace with running passes or waiting keys.
type namespaceQueue struct {
	name    string
	keys    []string
	running int
	turn    int // of several namespaces with the same number of running passes, the one with the lowest turn is next
	index   int // in turns, if it has keys
}

func newFairQueue(workers int) *fairQueue {
	return &fairQueue{workers: workers, namespaces: map[string]*namespaceQueue{}}
}

// Touch does nothing: a key that is added again keeps its place.
func (q *fairQueue) Touch(string) {}

// Push adds a key. The work queue does not push a key that waits or runs.
func (q *fairQueue) Push(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.namespaceOf(key)
	n.keys = append(n.keys, key)
	q.keys++
	if len(n.keys) == 1 {
		q.toEnd(n)
		heap.Push(&q.waiting, n)
	}
}

// Len returns the number of keys, or 0 while none of them may have a worker. A worker that finds 0 waits. A Push wakes one worker, and a worker that
// has ended its pass calls Len again: that suffices, because a Push or the end of a pass lets at most one more pass begin.
func (q *fairQueue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || q.waiting[0].running >= q.workers-q.running {
		return 0
	}
	return q.keys
}

// Pop returns the next key, whose pass is running until done is called.
func (q *fairQueue) Pop() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.waiting[0]
	key := n.keys[0]
	n.keys[0] = "" // the array, and with it the string, stays in memory until the namespace has no keys
	n.keys = n.keys[1:]
	n.running++
	q.running++
	q.keys--
	if len(n.keys) == 0 {
		heap.Pop(&q.waiting)
		n.keys = nil
		return key
	}
	q.toEnd(n)
	heap.Fix(&q.waiting, 0)
	return key
}

// done ends the pass of a key.
func (q *fairQueue) done(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.namespaceOf(key)
	n.running--
	q.running--
	switch {
	case len(n.keys) > 0:
		heap.Fix(&q.waiting, n.index)
	case n.running == 0:
		delete(q.namespaces, n.name)
	}
}

// namespaceOf returns the queue of the namespace of a key, and creates it if there is none.
func (q *fairQueue) namespaceOf(key string) *namespaceQueue {
	namespace, _, _ := cache.SplitMetaNamespaceKey(key)
	if q.namespaces[namespace] == nil {
		q.namespaces[namespace] = &namespaceQueue{name: namespace}
	}
	return q.namespaces[namespace]
}

func (q *fairQueue) toEnd(n *namespaceQueue) {
	q.lastTurn++
	n.turn = q.lastTurn
}

// turns is a heap of the namespaces with waiting keys, the next one first.
type turns []*namespaceQueue

func (t turns) Len() int { return len(t) }

func (t turns) Less(i, j int) bool {
	if t[i].running != t[j].running {
		return t[i].running < t[j].running
	}
	return t[i].turn < t[j].turn
}

func (t turns) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

// Push implements heap.Interface.
func (t *turns) Push(n any) {
	n.(*namespaceQueue).index = len(*t)
	*t = append(*t, n.(*namespaceQueue))
}

// Pop implements heap.Interface.
func (t *turns) Pop() any {
	last := len(*t) - 1
	n := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return n
}
