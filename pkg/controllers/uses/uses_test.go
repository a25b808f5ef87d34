package uses

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

func TestEachAsksOnceAndUntilItIsAnswered(t *testing.T) {
	var asks Asks
	one, other := types.NamespacedName{Namespace: "ns", Name: "one"}, types.NamespacedName{Namespace: "ns", Name: "other"}
	a, b := registration.Use{UID: "a"}, registration.Use{UID: "b"}
	assert.Empty(t, asks.Of(one))
	asks.Add(one, a)
	asks.Add(one, a)
	asks.Add(one, b)
	asks.Add(other, a)
	assert.ElementsMatch(t, []registration.Use{a, b}, asks.Of(one))
	assert.Equal(t, 2, asks.Count(one))
	assert.Equal(t, 0, asks.Count(types.NamespacedName{Name: "third"}))

	asks.Done(one, []registration.Use{a, {UID: "never asked"}})
	assert.Equal(t, []registration.Use{b}, asks.Of(one))
	assert.Equal(t, []registration.Use{a}, asks.Of(other))
	asks.Done(one, []registration.Use{b})
	asks.Done(one, []registration.Use{b})
	asks.Forget(other)
	assert.Empty(t, asks.byToken, "nothing is kept of tokens for which nobody asks")
}

func TestManyMayAskAtTheSameTime(t *testing.T) {
	var asks Asks
	var asking sync.WaitGroup
	token := types.NamespacedName{Name: "one"}
	for n := range 100 {
		asking.Go(func() {
			use := registration.Use{UID: fmt.Sprint(n)}
			asks.Add(token, use)
			asks.Of(token)
			if n%2 == 0 {
				asks.Done(token, []registration.Use{use})
			}
		})
	}
	asking.Wait()
	assert.Len(t, asks.Of(token), 50)
}
