package credential

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/agent/hubclient"
)

// InUse is the credential with which the agent works, on its connection to the hub. A renewal replaces its token.
type InUse struct {
	// Conn sends the current token.
	Conn *hubclient.Connection

	stored *Stored // when the work began

	mutex sync.Mutex
	token string
	// otherToken is the next token while a renewal stores it, and afterwards the previous one: a reader of the Secret may find
	// either.
	otherToken string
}

// NewInUse returns the stored credential in use on conn.
func NewInUse(conn *hubclient.Connection, stored *Stored) *InUse {
	return &InUse{Conn: conn, stored: stored, token: stored.Token}
}

// Stored returns the credential with the current token.
func (u *InUse) Stored() *Stored {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.stored.WithToken(u.token)
}

// Matches reports whether a credential that was read from the Secret is this one. The tokens before and after a renewal both match.
func (u *InUse) Matches(found *Stored) bool {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	for _, token := range []string{u.token, u.otherToken} {
		if token != "" && found.Same(u.stored.WithToken(token).Access) {
			return true
		}
	}
	return false
}

// Expires returns the end of the current token; nil if the agent does not renew it.
func (u *InUse) Expires() *metav1.Time {
	expires, renewable := Expiry(u.Stored().Token)
	if !renewable {
		return nil
	}
	return &metav1.Time{Time: expires}
}

// hubTime returns the time of the hub's clock, as measured with its answers: tokens begin and end by that clock.
func (u *InUse) hubTime(now time.Time) time.Time {
	if skew, known := u.Conn.ClockSkew(); known {
		return now.Add(-skew)
	}
	return now
}

// storing makes Matches accept the token that is about to be stored.
func (u *InUse) storing(token string) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.otherToken = token
}

// useToken makes Conn send another token from the next request on.
func (u *InUse) useToken(token string) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.token, u.otherToken = token, u.token
	u.Conn.UseToken(token)
}
