package rancherlike

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Fault is a response of the server, or of a load balancer in front of it, instead of the response of the cluster.
type Fault struct {
	Name        string
	Code        int
	ContentType string
	Body        string
	// Below limits the fault to paths with this prefix.
	Below string
}

const (
	typeJSON = "application/json"
	typeHTML = "text/html"
	typeText = "text/plain; charset=utf-8"
)

// AgentFaults are the responses to agents while the server restarts, has lost its own cluster, or does not know them for a moment.
// The last two are like the errors of an API server.
func AgentFaults() []Fault {
	return []Fault{
		{Name: "401 of the server", Code: http.StatusUnauthorized, ContentType: typeJSON, Body: `{"type":"error","status":"401","message":"must authenticate"}`},
		{Name: "401 page", Code: http.StatusUnauthorized, ContentType: typeHTML, Body: "<html><body>Log in</body></html>"},
		{Name: "403 of the server", Code: http.StatusForbidden, ContentType: typeJSON, Body: `{"baseType":"error","code":"Forbidden","status":403,"type":"error"}`},
		{Name: "502 page", Code: http.StatusBadGateway, ContentType: typeHTML, Body: "<html><head><title>502 Bad Gateway</title></head></html>"},
		{Name: "503 page", Code: http.StatusServiceUnavailable, ContentType: typeHTML, Body: "<html><head><title>503 Service Temporarily Unavailable</title></head></html>"},
		{Name: "403 Status", Code: http.StatusForbidden, ContentType: typeJSON, Body: status(http.StatusForbidden, "Forbidden", "cannot list resource in API group")},
		{Name: "503 Status", Code: http.StatusServiceUnavailable, ContentType: typeJSON, Body: status(http.StatusServiceUnavailable, "ServiceUnavailable", "the server is currently unable to handle the request")},
	}
}

// TunnelFaults are the responses to the hub while the tunnel to a member is down.
func TunnelFaults() []Fault {
	return []Fault{
		{Name: "502 of the tunnel", Code: http.StatusBadGateway, ContentType: typeText, Body: "cluster agent disconnected"},
		{Name: "503 of the tunnel", Code: http.StatusServiceUnavailable, ContentType: typeText, Body: "cluster agent disconnected"},
	}
}

func status(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
}

// Switch injects a fault into one direction through the server, and counts the responses.
type Switch struct {
	mutex    sync.Mutex
	fault    *Fault
	answered int
	since    time.Time
	delay    time.Duration
}

// Slow delays every request, as a tunnel over a long distance does.
func (s *Switch) Slow(delay time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.delay = delay
}

func (s *Switch) linger(r *http.Request) {
	s.mutex.Lock()
	delay := s.delay
	s.mutex.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), delay)
	defer cancel()
	<-ctx.Done()
}

// Break responds to every request with the fault, and counts from 0.
func (s *Switch) Break(f Fault) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.fault, s.answered, s.since = &f, 0, time.Now()
}

// Mend forwards requests again.
func (s *Switch) Mend() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.fault = nil
}

// Answered returns the number of requests with the fault, and the time since Break.
func (s *Switch) Answered() (int, time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.answered, time.Since(s.since)
}

// interrupt responds with the fault, if there is one.
func (s *Switch) interrupt(w http.ResponseWriter, r *http.Request) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.fault == nil || !strings.HasPrefix(r.URL.Path, s.fault.Below) {
		return false
	}
	s.answered++
	s.fault.answer(w)
	return true
}

func (f Fault) answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", f.ContentType)
	w.WriteHeader(f.Code)
	_, _ = w.Write([]byte(f.Body))
}
