package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// Limits for clients, of which none authenticates.
const (
	// maxScrapes limits the scrapes at the same time: each holds all series of the process in memory.
	maxScrapes = 4
	// scrapeTimeout limits how long a client that reads slowly occupies one of these scrapes.
	scrapeTimeout = time.Minute
	probeTimeout  = 10 * time.Second
	// idleTimeout is longer than most intervals of scrapes, which use their connection again.
	idleTimeout = 2 * time.Minute
)

// serve serves HTTP at an address until ctx ends. An address that cannot be listened on is an error. A response takes writeTimeout at most, 0 for
// any time. The number of connections is not limited, because clients that open many connections could use up a limit and block the
// probes of the kubelet.
func serve(ctx context.Context, what, address string, handler http.Handler, writeTimeout time.Duration) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%s at %s: %w", what, address, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleTimeout, WriteTimeout: writeTimeout}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logrus.Errorf("Serving %s failed: %v", what, err)
		}
	}()
	logrus.Infof("Serving %s at http://%s", what, listener.Addr())
	return nil
}

// Health answers the probes of the kubelet.
//
//	/healthz  200 while the process responds at all. It does not depend on the API server: restarting the pod does not repair the
//	          API server, and the process would lose what it has in memory.
//	/readyz   200 while the program is ready, otherwise 503. The body describes the activity of the program, if it is not ready or the
//	          request has ?verbose.
//
// Every client that reaches the pod can read the body, so it contains no names, addresses or errors.
type Health struct {
	mutex sync.Mutex
	ready bool
	state string
	fault string
}

// NewHealth returns the health of a program that has just started.
func NewHealth() *Health { return &Health{state: "starting"} }

// Ready records that the program is ready, and its activity.
func (h *Health) Ready(state string) { h.set(true, state) }

// NotReady records that the program is not ready, and its activity.
func (h *Health) NotReady(state string) { h.set(false, state) }

func (h *Health) set(ready bool, state string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.ready, h.state = ready, state
}

// Fault records why the program is not ready, whatever it records with Ready; "" ends the fault.
func (h *Health) Fault(text string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.fault = text
}

// HealthFlag returns the flag for the address of Serve. Charts set the environment variable, so that another address can be set where pods
// share the network of their node.
func HealthFlag(address *string) cli.Flag {
	return &cli.StringFlag{
		Name: "health-bind-address", Destination: address, EnvVars: []string{"FLEET_HEALTH_BIND_ADDRESS"},
		Usage: "`ADDRESS` such as :8081 to serve /healthz and /readyz at; default: none",
	}
}

// Serve serves the probes at an address until ctx ends; an empty address serves nothing.
func (h *Health) Serve(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	return serve(ctx, "health checks", address, h, probeTimeout)
}

// ServeHTTP answers one probe.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	switch {
	case r.URL.Path == "/healthz":
		fmt.Fprintln(w, "ok")
	case r.URL.Path != "/readyz":
		http.NotFound(w, r)
	case !h.ready:
		http.Error(w, h.state, http.StatusServiceUnavailable)
	case h.fault != "":
		http.Error(w, h.fault, http.StatusServiceUnavailable)
	case r.URL.Query().Has("verbose"):
		fmt.Fprintln(w, h.state)
	default:
		fmt.Fprintln(w, "ok")
	}
}

// Metrics serves the metrics of this process as /metrics until ctx ends; an empty address serves nothing.
func Metrics(ctx context.Context, address string) (prometheus.Registerer, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), requestCount, requestDuration)
	if address == "" {
		return registry, nil
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	return registry, serve(ctx, "metrics", address, mux, scrapeTimeout)
}

// MetricsFlag returns the flag for the address of Metrics.
func MetricsFlag(address *string) cli.Flag {
	return &cli.StringFlag{
		Name: "metrics-bind-address", Destination: address, EnvVars: []string{"FLEET_METRICS_BIND_ADDRESS"},
		Usage: "`ADDRESS` such as :8080 to serve Prometheus metrics at; default: none",
	}
}

// ProfilesFlag returns the flag for the address of Profiles.
func ProfilesFlag(address *string) cli.Flag {
	return &cli.StringFlag{
		Name: "profiling-bind-address", Destination: address, EnvVars: []string{"FLEET_PROFILING_BIND_ADDRESS"},
		Usage: "`ADDRESS` such as localhost:6060 to serve Go profiles at, without authentication; default: none",
	}
}

// Profiles serves Go's profiles of this process below /debug/pprof/ until ctx ends; an empty address serves nothing.
func Profiles(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index) // heap, goroutine, allocs and others
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return serve(ctx, "profiles", address, mux, 0)
}

// The metrics of the requests that this process sends to API servers. client-go has one hook for the process. Kubernetes' own implementation
// of it has a label with the host, so a hub would have a series for each member.
var (
	requestCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rest_client_requests_total",
		Help: "Requests to API servers, by status code, method, and whether the server is the one of this process's own cluster (own) or another one (other).",
	}, []string{"code", "method", "server"})
	requestDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rest_client_request_duration_seconds", Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		Help: "Duration of requests to API servers, by verb and server.",
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

// HostOf returns the host of the API server of a configuration, with the port if the configuration names one.
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
