package agent

import (
	"fmt"
	"sync"
	"time"
)

// verdicts is a suspicion that several workers share.
type verdicts struct {
	mu        sync.Mutex
	suspicion *suspicion
	now       func() time.Time
}

// judge is told how a request ended, and returns an error when the hub refuses the credential for certain.
func (w *verdicts) judge(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.suspicion.observe(Classify(err), w.now()) {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}
