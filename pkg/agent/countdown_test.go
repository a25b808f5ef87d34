package agent

import (
	"net/http"
	"sync"

	"github.com/muster-fleet/muster/pkg/registration"
)

// countdown calls reached at the n-th write. The n-th and all later writes are lost.
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

// quiet reports whether the registration is complete, heartbeat included.
func (c *countdown) quiet(w *world) bool {
	return w.secret(registration.CredentialSecret) != nil && w.secret(registration.BootstrapSecret) == nil &&
		w.secret(registration.PendingSecret) == nil && w.hub.seenIn(w.config.Namespace)
}
