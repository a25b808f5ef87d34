package config

import (
	"reflect"
	"sync"
)

// Store holds the current configuration and calls listeners when it changes. The zero Store holds the default configuration and is
// ready to use.
type Store struct {
	mu        sync.RWMutex
	current   Hub
	problem   string // the reason why current is not the configuration
	listeners []func(before, after Hub)
}

// NewStore returns a Store that holds hub.
func NewStore(hub Hub) *Store { return &Store{current: hub} }

// Get returns the current configuration. Callers use it for one pass, and do not change values that it points to.
func (s *Store) Get() Hub {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.current
}

// SetFallback holds hub in place of a configuration that is invalid or missing, until Set is called. It calls no listeners.
func (s *Store) SetFallback(hub Hub, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.problem = hub, problem
}

// Problem returns the problem of SetFallback, or "" if the configuration is valid. While there is a problem, the hub changes no settings of
// existing agents.
func (s *Store) Problem() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.problem
}

// Set replaces the configuration. If it has changed, listeners are called one after another before Set returns. They must be quick: Set
// is called by a worker.
func (s *Store) Set(hub Hub) (changed bool) {
	s.mu.Lock()
	before := s.current
	s.current, s.problem = hub, ""
	listeners := s.listeners
	s.mu.Unlock()
	if reflect.DeepEqual(before, hub) {
		return false
	}
	for _, listen := range listeners {
		listen(before, hub)
	}
	return true
}

// OnChange registers a listener for changes of the configuration. It cannot be removed.
func (s *Store) OnChange(listen func(before, after Hub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, listen)
}
