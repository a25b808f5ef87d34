package rancherlike

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Fault is an answer of the server itself, or of a load balancer before it, instead of the cluster's.
type Fault struct {
	Name        string
	Code        int
	ContentType string
	Body        string
	// Below, if given, breaks only the paths that begin so.
	Below string
}

const (
	typeJSON = "application/json"
	typeHTML = "text/html"
	typeText = "text/plain; charset=utf-8"
)

// AgentFaults are what agents get to see while the server restarts, loses its own cluster, or forgets about them for a
// moment. The last two look as if the API server had sent them.
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

// TunnelFaults are what the hub gets to see while the tunnel to a member is down.
func TunnelFaults() []Fault {
	return []Fault{
		{Name: "502 of the tunnel", Code: http.StatusBadGateway, ContentType: typeText, Body: "cluster agent disconnected"},
		{Name: "503 of the tunnel", Code: http.StatusServiceUnavailable, ContentType: typeText, Body: "cluster agent disconnected"},
	}
}

func status(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
}

// Switch breaks one way through the server, and counts what it answered instead.
type Switch struct {
	mutex    sync.Mutex
	fault    *Fault
	answered int
	since    time.Time
	delay    time.Duration
}

// Slow has every request take that much longer, as over a tunnel to the other end of the world.
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

// Break has every request answered by the fault, and counts from 0.
func (s *Switch) Break(f Fault) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.fault, s.answered, s.since = &f, 0, time.Now()
}

// Mend lets requests through again.
func (s *Switch) Mend() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.fault = nil
}

// Answered says how many requests the fault has answered, in how much time.
func (s *Switch) Answered() (int, time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.answered, time.Since(s.since)
}

// interrupt answers the request if the way is broken.
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
