package agent

import (
	"net/http"
	"sync"

	"github.com/muster-fleet/muster/pkg/registration"
)

// countdown calls reached at the n-th write, and says of it and every later one that it is lost.
type countdown struct {
	mutex   sync.Mutex
	left    int
	reached func()
}

func (c *countdown) write(r *http.Request) (lost bool) {
	if !isWrite(r) {
		return false
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.left--
	if c.left == 0 {
		c.reached()
	}
	return c.left <= 0
}

// quiet says that the registration came to its end, heartbeat included.
func (c *countdown) quiet(w *world) bool {
	return w.secret(registration.CredentialSecret) != nil && w.secret(registration.BootstrapSecret) == nil &&
		w.secret(registration.PendingSecret) == nil && w.hub.seenIn(w.config.Namespace)
}
