// Package uses carries the wish of requests to be counted as uses of their token from the controller of requests to that
// of tokens, the only one that writes a token's status. A wish is lost with the process; a request that still waits is
// looked at by the next one, and wishes again.
package uses

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Asks are the requests that wait to be counted, by their token. The zero Asks is ready to use.
type Asks struct {
	mu      sync.Mutex
	byToken map[types.NamespacedName]map[string]registration.Use
}

// Add notes that a request asks for a use of the token.
func (a *Asks) Add(token types.NamespacedName, use registration.Use) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byToken == nil {
		a.byToken = map[types.NamespacedName]map[string]registration.Use{}
	}
	if a.byToken[token] == nil {
		a.byToken[token] = map[string]registration.Use{}
	}
	a.byToken[token][use.UID] = use
}

// Of are the requests that ask for a use of the token.
func (a *Asks) Of(token types.NamespacedName) []registration.Use {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.byToken[token]))
}

// Count is how many requests ask for a use of the token.
func (a *Asks) Count(token types.NamespacedName) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.byToken[token])
}

// Done drops requests that were answered.
func (a *Asks) Done(token types.NamespacedName, answered []registration.Use) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, use := range answered {
		delete(a.byToken[token], use.UID)
	}
	if len(a.byToken[token]) == 0 {
		delete(a.byToken, token)
	}
}

// Forget drops all that ask for a token that is gone.
func (a *Asks) Forget(token types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byToken, token)
}
