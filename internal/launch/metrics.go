package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
)

// headerTimeout bounds how long a client of the metrics may take to say what it wants.
const headerTimeout = 10 * time.Second

// Metrics are those of this process, served until ctx ends. An empty address serves none; one that cannot be listened on
// is an error, for whoever asked for metrics would miss them silently.
func Metrics(ctx context.Context, address string) (prometheus.Registerer, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if address == "" {
		return registry, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics at %s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logrus.Errorf("Metrics: %v", err)
		}
	}()
	logrus.Infof("Metrics at http://%s/metrics", listener.Addr())
	return registry, nil
}
