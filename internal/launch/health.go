package launch

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/urfave/cli/v2"
)

// Health is what a program tells the kubelet of itself.
//
//	/healthz  200 while the process answers at all. Nothing else counts: an API server that is away does not come back
//	          sooner when a pod is restarted, and the restart would cost all that is in memory.
//	/readyz   200 while it is ready, else 503; with ?verbose and whenever it is not ready, in words what it is doing.
//
// The words are for everybody who reaches the pod: no names, addresses or errors.
type Health struct {
	mutex sync.Mutex
	ready bool
	state string
}

// NewHealth is that of a program that has just begun.
func NewHealth() *Health { return &Health{state: "starting"} }

// Ready says that the program is ready, and what it is doing.
func (h *Health) Ready(state string) { h.set(true, state) }

// NotReady says that the program is not ready, and what for it waits.
func (h *Health) NotReady(state string) { h.set(false, state) }

func (h *Health) set(ready bool, state string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.ready, h.state = ready, state
}

// HealthFlag is the flag for the address of Serve. Charts set it by the environment, for there an address can be replaced
// where pods share one network.
func HealthFlag(address *string) cli.Flag {
	return &cli.StringFlag{
		Name: "health-bind-address", Destination: address, EnvVars: []string{"FLEET_HEALTH_BIND_ADDRESS"},
		Usage: "`ADDRESS` such as :8081 to serve /healthz and /readyz at; default: none",
	}
}

// Serve answers the kubelet at address until ctx ends. An empty address answers nobody; one that cannot be listened on is
// an error.
func (h *Health) Serve(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	return serve(ctx, "health checks", address, h)
}

// ServeHTTP answers one question.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz":
		fmt.Fprintln(w, "ok")
	case "/readyz":
		h.answer(w, r.URL.Query().Has("verbose"))
	default:
		http.NotFound(w, r)
	}
}

func (h *Health) answer(w http.ResponseWriter, verbose bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	switch {
	case !h.ready:
		http.Error(w, h.state, http.StatusServiceUnavailable)
	case verbose:
		fmt.Fprintln(w, h.state)
	default:
		fmt.Fprintln(w, "ok")
	}
}
