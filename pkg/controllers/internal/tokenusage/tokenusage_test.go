package tokenusage

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

func TestUncounted(t *testing.T) {
	var uncounted Uncounted
	one, other := types.NamespacedName{Namespace: "ns", Name: "one"}, types.NamespacedName{Namespace: "ns", Name: "other"}
	a, b := registration.Use{UID: "a"}, registration.Use{UID: "b"}
	assert.Empty(t, uncounted.Of(one))
	uncounted.Add(one, a)
	uncounted.Add(one, a)
	uncounted.Add(one, b)
	uncounted.Add(other, a)
	assert.ElementsMatch(t, []registration.Use{a, b}, uncounted.Of(one))
	assert.Equal(t, 2, uncounted.Count(one))
	assert.Equal(t, 0, uncounted.Count(types.NamespacedName{Name: "third"}))

	uncounted.Done(one, []registration.Use{a, {UID: "never asked"}})
	assert.Equal(t, []registration.Use{b}, uncounted.Of(one))
	assert.Equal(t, []registration.Use{a}, uncounted.Of(other))
	uncounted.Done(one, []registration.Use{b})
	uncounted.Done(one, []registration.Use{b})
	uncounted.Forget(other)
	assert.Empty(t, uncounted.byToken, "no entry is kept for a token without uncounted uses")
}

func TestUncountedIsSafeForConcurrentUse(t *testing.T) {
	var uncounted Uncounted
	var asking sync.WaitGroup
	token := types.NamespacedName{Name: "one"}
	for n := range 100 {
		asking.Go(func() {
			use := registration.Use{UID: fmt.Sprint(n)}
			uncounted.Add(token, use)
			uncounted.Of(token)
			if n%2 == 0 {
				uncounted.Done(token, []registration.Use{use})
			}
		})
	}
	asking.Wait()
	assert.Len(t, uncounted.Of(token), 50)
}
