// Package metrics has the hub's Prometheus metrics.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "muster"

// Counters are the metrics that the controllers of one hub update.
type Counters struct {
	// OrphansCollected counts objects that were deleted because their owner does not exist, by kind.
	OrphansCollected *prometheus.CounterVec
	// OrphansLeft is the number of orphans that the last walk could not delete, by kind.
	OrphansLeft *prometheus.GaugeVec
	// MembersLeft counts deleted Clusters on whose member something may be left, by reason.
	MembersLeft *prometheus.CounterVec

	// OverLimit counts requests that were refused, or have to wait, because too many others have led to nothing yet, by reason.
	OverLimit *prometheus.CounterVec

	granted prometheus.Counter
	took    prometheus.Histogram
}

// buckets of the duration of a registration, in seconds. The long ones are for requests that a person has to approve.
var buckets = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// Granted counts a granted registration, with the time since its creation. That may seem negative: the time of creation is in
// full seconds and by the clock of the API server.
func (h *Counters) Granted(took time.Duration) {
	h.granted.Inc()
	h.took.Observe(max(took, 0).Seconds())
}

// New returns the metrics of a hub. It registers them unless the registerer is nil.
func New(registerer prometheus.Registerer) *Counters {
	h := &Counters{
		OrphansCollected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "orphans_collected_total",
			Help: "Objects deleted because their owner does not exist, by kind.",
		}, []string{"kind"}),
		OrphansLeft: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "orphans_left",
			Help: "Orphans that could not be deleted, by kind.",
		}, []string{"kind"}),
		MembersLeft: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "members_left_total",
			Help: "Deleted Clusters on whose member something may be left, by reason.",
		}, []string{"reason"}),
		OverLimit: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "registrations_over_limit_total",
			Help: "ClusterRegistrations that were refused (TooManyWaiting) or have to wait (TooManyUnconnected) because of registration.limits, by reason.",
		}, []string{"reason"}),
		granted: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "registrations_granted_total",
			Help: "ClusterRegistrations that this hub has granted.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "registration_duration_seconds", Buckets: buckets,
			Help: "Time from the creation of a ClusterRegistration to its grant, including the time until a person approves it.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(h.OrphansCollected, h.OrphansLeft, h.MembersLeft, h.OverLimit, h.granted, h.took)
	}
	return h
}
