package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-fleet/muster/pkg/version"
)

// NewLeader returns the metric that is 1 while this hub works, and 0 while it is a standby.
func NewLeader() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "leader",
		Help: "Whether this hub works (1) or is a standby (0).",
	})
}

// NewBuildInfo returns the metric with the version of the hub.
func NewBuildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", ConstLabels: prometheus.Labels{"version": version.Version, "go_version": runtime.Version()},
		Help: "The version of this program, as a label; the value is 1.",
	}, func() float64 { return 1 })
}
