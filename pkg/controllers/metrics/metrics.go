// Package metrics has the hub's Prometheus metrics.
package metrics

import "github.com/prometheus/client_golang/prometheus"

const namespace = "muster"

// Hub is what one hub counts.
type Hub struct {
	// OrphansCollected counts objects that were removed because what they were made for is gone, by kind.
	OrphansCollected *prometheus.CounterVec
	// OrphansLeft is the number of orphans that were found and could not be removed, by kind.
	OrphansLeft *prometheus.GaugeVec
	// MembersLeft counts deleted Clusters whose member could not be cleaned, by reason.
	MembersLeft *prometheus.CounterVec
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
	}
	if registerer != nil {
		registerer.MustRegister(h.OrphansCollected, h.OrphansLeft, h.MembersLeft)
	}
	return h
}

// ShardsHeld is the number of shards of the work that this process does, for hubs that share it. One that stands by has none, and
// of a shard that nobody has, nothing is done until somebody has it. A nil registerer leaves it unregistered.
func ShardsHeld(registerer prometheus.Registerer) prometheus.Gauge {
	held := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "shards_held",
		Help: "Shards of the work that this hub does; all hubs that share the work have 16 together.",
	})
	if registerer != nil {
		registerer.MustRegister(held)
	}
	return held
}
