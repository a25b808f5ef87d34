package admin

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// hearing knows whether the API server answers those who wait. The library tries again for ever and in silence, so that
// without it a missing right or a broken server would look like an object that does not come.
type hearing struct {
	// refused ends the wait: no later try is answered otherwise.
	refused context.CancelFunc

	mu          sync.Mutex
	list, watch error
}

// listed and watched are told how each request ended. Those that the end of the wait cut off say nothing of the server.
func (h *hearing) listed(ctx context.Context, err error) {
	h.note(ctx, err, func() { h.list = err })
}

// A watch that begins may take the place of the list that failed before.
func (h *hearing) watched(ctx context.Context, err error) {
	h.note(ctx, err, func() {
		h.watch = err
		if err == nil {
			h.list = nil
		}
	})
}

func (h *hearing) note(ctx context.Context, err error, keep func()) {
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	keep()
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		h.refused()
	}
}

// explain is the error of a wait that ended with ctx, and with it why nothing was heard, if that is known.
func (h *hearing) explain(ctx context.Context, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	why := h.list
	if why == nil {
		why = h.watch
	}
	if err == nil || why == nil || ctx.Err() == nil {
		return err
	}
	return &unheardError{why}
}

// unheardError says that how the object stands is not known, rather than that it does not come.
type unheardError struct{ why error }

func (e *unheardError) Error() string {
	return fmt.Sprintf("the hub's API server does not say how it stands: %v", e.why)
}

func (e *unheardError) Unwrap() error { return e.why }
