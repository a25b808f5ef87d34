package credential

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
)

// SigningKeys knows the keys with which the API servers sign tokens of ServiceAccounts, by the header "kid" of the tokens that this process
// gets. A token with an earlier key may not be accepted any more. The zero value knows none. It is safe for concurrent use.
//
// Several API servers may sign with several keys. A key that appears for the first time ends the earlier ones, which are signed with again as soon
// as one of them appears again. So no token is outdated more often than new keys appear.
type SigningKeys struct {
	// OnChange is called when a key ends the earlier ones, and for the first key; nil does nothing.
	OnChange func()

	mutex    sync.Mutex
	current  sets.Set[string]
	earlier  sets.Set[string]
	notAfter time.Time // a token that was issued later is not outdated: its key may be newer than the current ones
}

// Observe notes the key of a token that the API server has issued to this process, or with which it accepts requests of this process.
func (k *SigningKeys) Observe(token Token) {
	if k == nil {
		return
	}
	claims, err := Inspect(token)
	if err != nil || claims.KeyID == "" || claims.Issued.IsZero() {
		return
	}
	if k.add(claims) && k.OnChange != nil {
		k.OnChange()
	}
}

func (k *SigningKeys) add(claims Claims) (isNew bool) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	switch {
	case k.current.Has(claims.KeyID):
	case k.earlier.Has(claims.KeyID):
		k.current.Insert(claims.KeyID)
	default:
		k.earlier = k.earlier.Union(k.current)
		k.current, k.notAfter = sets.New(claims.KeyID), claims.Issued
		return true
	}
	return false
}

// IsOutdated reports whether a token is signed with another key than those with which the API servers sign now. It is false while no key is known,
// and for a token of a Secret, which Kubernetes does not replace.
func (k *SigningKeys) IsOutdated(claims Claims) bool {
	if k == nil || claims.KeyID == "" || claims.Issued.IsZero() || claims.Expires.IsZero() {
		return false
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return k.current.Len() > 0 && !k.current.Has(claims.KeyID) && !claims.Issued.After(k.notAfter)
}
