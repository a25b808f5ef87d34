// Package tokenusage passes the requests that must be counted as uses of their token from the controller of requests to that of
// tokens, the only one that writes the status of a token. It keeps them in memory: after a restart of the hub, requests that still wait
// ask again.
package tokenusage

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Queue has the uncounted requests of each token. The zero value is ready to use.
type Queue struct {
	mu      sync.Mutex
	byToken map[types.NamespacedName]map[string]registration.Use
}

// Add asks for a use of the token.
func (q *Queue) Add(token types.NamespacedName, use registration.Use) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byToken == nil {
		q.byToken = map[types.NamespacedName]map[string]registration.Use{}
	}
	if q.byToken[token] == nil {
		q.byToken[token] = map[string]registration.Use{}
	}
	q.byToken[token][use.UID] = use
}

// Of returns the requests that ask for a use of the token.
func (q *Queue) Of(token types.NamespacedName) []registration.Use {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.byToken[token]))
}

// Count is the number of requests that ask for a use of the token.
func (q *Queue) Count(token types.NamespacedName) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.byToken[token])
}

// Done removes requests that were counted or refused.
func (q *Queue) Done(token types.NamespacedName, done []registration.Use) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, use := range done {
		delete(q.byToken[token], use.UID)
	}
	if len(q.byToken[token]) == 0 {
		delete(q.byToken, token)
	}
}

// Forget removes all requests of a token that is deleted.
func (q *Queue) Forget(token types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.byToken, token)
}
