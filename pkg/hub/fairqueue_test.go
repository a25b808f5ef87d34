package hub

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/workqueue"
)

// popAll starts passes until the queue permits no more.
func popAll(q *fairQueue) (keys []string) {
	for q.Len() > 0 {
		keys = append(keys, q.Pop())
	}
	return keys
}

func pushed(workers int, keys ...string) *fairQueue {
	q := newFairQueue(workers)
	for _, key := range keys {
		q.Push(key)
	}
	return q
}

func TestFairQueueOrder(t *testing.T) {
	for name, row := range map[string]struct {
		workers int
		keys    string
		order   string // of passes that end before the next one begins
	}{
		"one namespace: first in, first out":           {2, "a/3 a/1 a/2", "a/3 a/1 a/2"},
		"namespaces take turns":                        {2, "a/1 a/2 a/3 b/1 c/1 c/2", "a/1 b/1 c/1 a/2 c/2 a/3"},
		"objects without a namespace are one of them":  {2, "1 2 a/1", "1 a/1 2"},
		"a namespace that comes late waits for a turn": {2, "a/1 b/1 a/2 b/2 c/1", "a/1 b/1 c/1 a/2 b/2"},
	} {
		t.Run(name, func(t *testing.T) {
			q := pushed(row.workers, strings.Fields(row.keys)...)
			var order []string
			for q.Len() > 0 {
				key := q.Pop()
				q.done(key)
				order = append(order, key)
			}
			assert.Equal(t, strings.Fields(row.order), order)
			assert.Empty(t, q.namespaces, "a namespace without keys is forgotten")
		})
	}
}

func TestFairQueuePasses(t *testing.T) {
	t.Run("a namespace gets no more workers than it leaves free", func(t *testing.T) {
		q := newFairQueue(8)
		for _, namespace := range []string{"a", "b", "c", "d", "e"} {
			for n := range 9 {
				q.Push(fmt.Sprint(namespace, "/", n))
			}
			popAll(q)
		}
		running := map[string]int{}
		for name, n := range q.namespaces {
			running[name] = n.running
		}
		assert.Equal(t, map[string]int{"a": 4, "b": 2, "c": 1, "d": 1, "e": 0}, running)
	})
	t.Run("the end of a pass gives its worker to the namespace with the fewest", func(t *testing.T) {
		q := pushed(4, "a/1", "a/2", "a/3", "a/4")
		require.Equal(t, []string{"a/1", "a/2"}, popAll(q))
		q.Push("b/1")
		q.Push("b/2")
		require.Equal(t, []string{"b/1"}, popAll(q))
		q.Push("c/1")
		require.Equal(t, []string{"c/1"}, popAll(q))
		q.Push("d/1")
		require.Empty(t, popAll(q))
		q.done("a/1")
		assert.Equal(t, []string{"d/1"}, popAll(q))
		q.done("a/2")
		assert.Equal(t, []string{"a/3"}, popAll(q))
	})
}

// A work queue wakes one worker for each Push, and the worker whose pass has ended asks for the next key. If either allowed two more passes,
// one of them would wait although a worker is idle.
func TestFairQueueWakesOneWorker(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		q, serial, running := newFairQueue(1+random.IntN(12)), 0, []string{}
		for range 300 {
			if len(running) > 0 && random.IntN(2) == 0 {
				at := random.IntN(len(running))
				q.done(running[at])
				running = append(running[:at], running[at+1:]...)
			} else {
				serial++
				q.Push(fmt.Sprint(random.IntN(6), "/", serial))
			}
			begun := popAll(q)
			require.LessOrEqual(t, len(begun), 1)
			running = append(running, begun...)
		}
	}
}

// No key is lost, no object has two passes at the same time, and one that is added several times during a pass has one more, as without the
// order.
func TestFairQueueInWorkQueue(t *testing.T) {
	const workers, namespaces, objects, rounds = 6, 5, 40, 5
	order := newFairQueue(workers)
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Queue: order})
	var passes, all sync.WaitGroup
	for object := range objects {
		for namespace := range namespaces {
			queue.Add(fmt.Sprint(namespace, "/", object))
			passes.Add(rounds)
		}
	}

	var mu sync.Mutex
	running, most, count := map[string]bool{}, map[string]int{}, map[string]int{}
	begin := func(key string) (again bool) {
		mu.Lock()
		defer mu.Unlock()
		assert.False(t, running[key], "two passes of %s", key)
		running[key] = true
		namespace, _, _ := strings.Cut(key, "/")
		current := 0
		for other := range running {
			if strings.HasPrefix(other, namespace+"/") {
				current++
			}
		}
		most[namespace] = max(most[namespace], current)
		count[key]++
		return count[key] < rounds
	}
	for range workers {
		all.Go(func() {
			for key, stopped := queue.Get(); !stopped; key, stopped = queue.Get() {
				if begin(key) {
					queue.Add(key)
					queue.Add(key)
				}
				mu.Lock()
				delete(running, key)
				mu.Unlock()
				order.done(key)
				queue.Done(key)
				passes.Done()
			}
		})
	}
	passes.Wait()
	queue.ShutDown()
	all.Wait()
	assert.Len(t, count, namespaces*objects)
	for namespace, passes := range most {
		assert.LessOrEqual(t, passes, workers/2, "passes of namespace %s", namespace)
	}
	assert.Empty(t, order.namespaces)
}
