package config

import (
	"reflect"
	"sync"
)

// Store holds the configuration in force and tells those who asked when it changes. The zero Store holds the default
// configuration and is ready to use.
type Store struct {
	mu        sync.RWMutex
	current   Hub
	listeners []func(before, after Hub)
}

// NewStore returns a Store that holds hub.
func NewStore(hub Hub) *Store { return &Store{current: hub} }

// Get returns the configuration in force. Callers keep it for one pass and do not change what it points to.
func (s *Store) Get() Hub {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.current
}

// Set puts a configuration in force. Listeners are called one after another, before Set returns, and only when something
// changed; each must be quick, for it is called on a worker.
func (s *Store) Set(hub Hub) (changed bool) {
	s.mu.Lock()
	before := s.current
	s.current = hub
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

// OnChange has listen called after each change of the configuration. It cannot be taken back.
func (s *Store) OnChange(listen func(before, after Hub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, listen)
}
