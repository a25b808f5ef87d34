package rancherlike

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Fault is an answer of the server itself, or of a load balancer before it, instead of the cluster's.
type Fault struct {
	Name        string
	Code        int
	ContentType string
	Body        string
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
		{"401 of the server", http.StatusUnauthorized, typeJSON, `{"type":"error","status":"401","message":"must authenticate"}`},
		{"401 page", http.StatusUnauthorized, typeHTML, "<html><body>Log in</body></html>"},
		{"403 of the server", http.StatusForbidden, typeJSON, `{"baseType":"error","code":"Forbidden","status":403,"type":"error"}`},
		{"502 page", http.StatusBadGateway, typeHTML, "<html><head><title>502 Bad Gateway</title></head></html>"},
		{"503 page", http.StatusServiceUnavailable, typeHTML, "<html><head><title>503 Service Temporarily Unavailable</title></head></html>"},
		{"403 Status", http.StatusForbidden, typeJSON, status(http.StatusForbidden, "Forbidden", "cannot list resource in API group")},
		{"503 Status", http.StatusServiceUnavailable, typeJSON, status(http.StatusServiceUnavailable, "ServiceUnavailable", "the server is currently unable to handle the request")},
	}
}

// TunnelFaults are what the hub gets to see while the tunnel to a member is down.
func TunnelFaults() []Fault {
	return []Fault{
		{"502 of the tunnel", http.StatusBadGateway, typeText, "cluster agent disconnected"},
		{"503 of the tunnel", http.StatusServiceUnavailable, typeText, "cluster agent disconnected"},
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
func (s *Switch) interrupt(w http.ResponseWriter) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.fault == nil {
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
