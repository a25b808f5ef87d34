package launch

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// The metrics of the requests that this process sends to API servers. client-go has one hook for the process. Kubernetes' own implementation
// of it has a label with the host, so a hub would have a series for each member.
var (
	requestCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rest_client_requests_total",
		Help: "Requests to API servers, by status code, method, and whether the server is the one of this process's own cluster (own) or another one (other).",
	}, []string{"code", "method", "server"})
	requestDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rest_client_request_duration_seconds", Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		Help: "Duration of requests to API servers, by method and server.",
	}, []string{"verb", "server"})
)

// requestMetrics implements the hooks of client-go.
type requestMetrics struct{ ownHost string }

// MeasureRequests records the requests of client-go. ownHost is the host of the API server of this process's own cluster. Only the first call
// in a process has an effect.
func MeasureRequests(ownHost string) {
	m := requestMetrics{ownHost}
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: m, RequestLatency: m})
}

// HostOf returns the host, with the port, of the API server of a configuration.
func HostOf(config *rest.Config) string {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return ""
	}
	return server.Host
}

func (m requestMetrics) server(host string) string {
	if host == m.ownHost {
		return "own"
	}
	return "other"
}

// Increment implements clientmetrics.ResultMetric.
func (m requestMetrics) Increment(_ context.Context, code, method, host string) {
	requestCount.WithLabelValues(code, method, m.server(host)).Inc()
}

// Observe implements clientmetrics.LatencyMetric.
func (m requestMetrics) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	requestDuration.WithLabelValues(verb, m.server(u.Host)).Observe(took.Seconds())
}
