package controllers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/shard"
)

// startCensus has Clusters and registrations counted at each scrape.
func (h *hub) startCensus() {
	if h.options.Metrics == nil {
		return
	}
	clusters, requests := h.Fleet.Cluster().Cache(), h.Fleet.ClusterRegistration().Cache()
	h.census = metrics.Census{
		Clusters:      ownOf(h.Shards, clusters.List, shard.OfCluster),
		Registrations: ownOf(h.Shards, requests.List, shard.OfRequest),
	}
	h.options.Metrics.MustRegister(h.census)
}

// endCensus: the caches of a hub that has ended stand still, and the program it was embedded in may go on serving metrics.
func (h *hub) endCensus() {
	if h.census != nil {
		h.options.Metrics.Unregister(h.census)
	}
}

// ownOf lists what is in the cache and this hub's to work on, so that hubs that share the work count everything once together.
// What is handed to another controller is nobody's here.
func ownOf[T metav1.Object](g *shard.Gate, list func(string, labels.Selector) ([]T, error), of func(T) shard.Shard) func() ([]T, error) {
	return func() (own []T, err error) {
		all, err := list(metav1.NamespaceAll, labels.Everything())
		for _, object := range all {
			if object.GetLabels()[fleet.ClusterManagementLabel] == "" && g.Holds(of(object)) {
				own = append(own, object)
			}
		}
		return own, err
	}
}
