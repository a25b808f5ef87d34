package sim

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Signals tell of things by name, each once.
type Signals struct {
	mu     sync.Mutex
	byName map[string]chan struct{}
	given  map[string]bool
}

// of is closed when something of that name has been given.
func (s *Signals) of(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName == nil {
		s.byName, s.given = map[string]chan struct{}{}, map[string]bool{}
	}
	if s.byName[name] == nil {
		s.byName[name] = make(chan struct{})
	}
	return s.byName[name]
}

// Give tells that it is there.
func (s *Signals) Give(name string) {
	signal := s.of(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.given[name] {
		s.given[name] = true
		close(signal)
	}
}

// Wait returns when something of that name has been given, and gives up after Patience.
func (s *Signals) Wait(ctx context.Context, name string) error {
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	select {
	case <-s.of(name):
		return nil
	case <-patience.C:
		return fmt.Errorf("no sign of %s within %s", name, Patience)
	case <-ctx.Done():
		return ctx.Err()
	}
}
