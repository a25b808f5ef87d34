package hub

import (
	"sync"

	"k8s.io/client-go/tools/cache"
)

// oneListener is an informer with one event listener for all handlers. client-go starts a listener for each handler, and buffers the events that the handler has
// not processed yet. That buffer never shrinks, and at the start it gets an event for each object in the cache.
type oneListener struct {
	cache.SharedIndexInformer

	mu        sync.Mutex
	handlers  handlers
	listening bool
}

// AddEventHandler adds a handler, which gets no events before listen. The result reports whether the cache is filled, and nothing about the handler.
func (l *oneListener) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listening {
		return l.SharedIndexInformer.AddEventHandler(handler)
	}
	l.handlers = append(l.handlers, handler)
	return l.SharedIndexInformer, nil
}

// listen starts the listener. It gets an event for each object that is in the cache.
func (l *oneListener) listen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listening || len(l.handlers) == 0 {
		return nil
	}
	l.listening = true
	_, err := l.SharedIndexInformer.AddEventHandler(l.handlers)
	return err
}

// handlers get each event one after the other.
type handlers []cache.ResourceEventHandler

// OnAdd is called for a new object, and at the start for each object in the cache.
func (all handlers) OnAdd(object any, isInInitialList bool) {
	for _, h := range all {
		h.OnAdd(object, isInInitialList)
	}
}

// OnUpdate is called for a changed object.
func (all handlers) OnUpdate(before, after any) {
	for _, h := range all {
		h.OnUpdate(before, after)
	}
}

// OnDelete is called for a deleted object.
func (all handlers) OnDelete(object any) {
	for _, h := range all {
		h.OnDelete(object)
	}
}
