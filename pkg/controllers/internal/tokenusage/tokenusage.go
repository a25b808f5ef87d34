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

// Uncounted has the uncounted requests of each token. The zero value is ready to use.
type Uncounted struct {
	mu      sync.Mutex
	byToken map[types.NamespacedName]map[string]registration.Use
}

// Add asks for a use of the token.
func (u *Uncounted) Add(token types.NamespacedName, use registration.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byToken == nil {
		u.byToken = map[types.NamespacedName]map[string]registration.Use{}
	}
	if u.byToken[token] == nil {
		u.byToken[token] = map[string]registration.Use{}
	}
	u.byToken[token][use.UID] = use
}

// Of returns the requests that ask for a use of the token.
func (u *Uncounted) Of(token types.NamespacedName) []registration.Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Values(u.byToken[token]))
}

// Count is the number of requests that ask for a use of the token.
func (u *Uncounted) Count(token types.NamespacedName) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.byToken[token])
}

// Done removes requests that were counted or refused.
func (u *Uncounted) Done(token types.NamespacedName, done []registration.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, use := range done {
		delete(u.byToken[token], use.UID)
	}
	if len(u.byToken[token]) == 0 {
		delete(u.byToken, token)
	}
}

// Forget removes all requests of a token that is deleted.
func (u *Uncounted) Forget(token types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byToken, token)
}
