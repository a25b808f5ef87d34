package tokenusage

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

func TestQueue(t *testing.T) {
	var queue Queue
	one, other := types.NamespacedName{Namespace: "ns", Name: "one"}, types.NamespacedName{Namespace: "ns", Name: "other"}
	a, b := registration.Use{UID: "a"}, registration.Use{UID: "b"}
	assert.Empty(t, queue.Of(one))
	queue.Add(one, a)
	queue.Add(one, a)
	queue.Add(one, b)
	queue.Add(other, a)
	assert.ElementsMatch(t, []registration.Use{a, b}, queue.Of(one))
	assert.Equal(t, 2, queue.Count(one))
	assert.Equal(t, 0, queue.Count(types.NamespacedName{Name: "third"}))

	queue.Done(one, []registration.Use{a, {UID: "never asked"}})
	assert.Equal(t, []registration.Use{b}, queue.Of(one))
	assert.Equal(t, []registration.Use{a}, queue.Of(other))
	queue.Done(one, []registration.Use{b})
	queue.Done(one, []registration.Use{b})
	queue.Forget(other)
	assert.Empty(t, queue.byToken, "nothing is kept of tokens for which nobody queue")
}

func TestQueueIsSafeForConcurrentUse(t *testing.T) {
	var queue Queue
	var asking sync.WaitGroup
	token := types.NamespacedName{Name: "one"}
	for n := range 100 {
		asking.Go(func() {
			use := registration.Use{UID: fmt.Sprint(n)}
			queue.Add(token, use)
			queue.Of(token)
			if n%2 == 0 {
				queue.Done(token, []registration.Use{use})
			}
		})
	}
	asking.Wait()
	assert.Len(t, queue.Of(token), 50)
}
