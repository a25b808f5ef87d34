// Package metrics has the hub's Prometheus metrics.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "muster"

// Hub is what one hub counts.
type Hub struct {
	// OrphansCollected counts objects that were removed because what they were made for is gone, by kind.
	OrphansCollected *prometheus.CounterVec
	// OrphansLeft is the number of orphans that were found and could not be removed, by kind.
	OrphansLeft *prometheus.GaugeVec
	// MembersLeft counts deleted Clusters whose member could not be cleaned, by reason.
	MembersLeft *prometheus.CounterVec

	granted prometheus.Counter
	took    prometheus.Histogram
}

// buckets of a registration's duration, in seconds: from one of which nothing waits to one that a person has to allow.
var buckets = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// Granted counts a registration that this hub has granted, that long after it was created. The creation is by the API server's
// clock and known to the second only, so it may seem to come after the grant.
func (h *Hub) Granted(took time.Duration) {
	h.granted.Inc()
	h.took.Observe(max(took, 0).Seconds())
}

// New makes the metrics of a hub and registers them; a nil registerer leaves them unregistered, where nobody reads them.
func New(registerer prometheus.Registerer) *Hub {
	h := &Hub{
		OrphansCollected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "orphans_collected_total",
			Help: "Objects removed because what they were made for is gone, by kind.",
		}, []string{"kind"}),
		OrphansLeft: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "orphans_left",
			Help: "Orphans that were found and could not be removed yet, by kind.",
		}, []string{"kind"}),
		MembersLeft: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "members_left_total",
			Help: "Deleted Clusters on whose member something may be left, by reason.",
		}, []string{"reason"}),
		granted: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "registrations_granted_total",
			Help: "ClusterRegistrations that this hub has granted.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "registration_duration_seconds", Buckets: buckets,
			Help: "Time from the creation of a ClusterRegistration to its grant, waits for a person included.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(h.OrphansCollected, h.OrphansLeft, h.MembersLeft, h.granted, h.took)
	}
	return h
}
