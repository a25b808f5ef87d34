package testenv

import (
	"io"
	"net/http"
	"strings"
	"sync"
)

// Lag makes a cache of the hub lag behind: from Begin to End the hub hears nothing of a watch. Inject Harm before the hub
// starts.
type Lag struct {
	path, labelSelector string

	mu  sync.Mutex
	end chan struct{} // nil while there is no lag
}

// LagOf is about the watch of that path whose label selector contains the given text.
func LagOf(path, labelSelector string) *Lag { return &Lag{path: path, labelSelector: labelSelector} }

// Begin holds back what the watch says.
func (l *Lag) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = make(chan struct{})
}

// End lets everything through that was held back.
func (l *Lag) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.end)
	l.end = nil
}

func (l *Lag) until() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Harm is for Wire.Inject.
func (l *Lag) Harm(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
	answer, err := send()
	query := req.URL.Query()
	if err == nil && req.URL.Path == l.path && query.Get("watch") != "" && strings.Contains(query.Get("labelSelector"), l.labelSelector) {
		answer.Body = &held{ReadCloser: answer.Body, lag: l, closed: req.Context().Done()}
	}
	return answer, err
}

type held struct {
	io.ReadCloser
	lag    *Lag
	closed <-chan struct{}
}

// Read passes on nothing while there is a lag.
func (h *held) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if end := h.lag.until(); end != nil {
		select {
		case <-end:
		case <-h.closed:
		}
	}
	return n, err
}
