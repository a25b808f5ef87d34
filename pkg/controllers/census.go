package controllers

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/shard"
)

// startMetrics has Clusters and registrations counted at each scrape, beside what the controllers count themselves.
func (h *hub) startMetrics() error {
	clusters, requests := h.Fleet.Cluster().Cache(), h.Fleet.ClusterRegistration().Cache()
	h.series.MustRegister(metrics.Census{
		Filled: func() bool {
			return h.Fleet.Cluster().Informer().HasSynced() && h.Fleet.ClusterRegistration().Informer().HasSynced()
		},
		Clusters:      ownOf(h.Shards, clusters.List, shard.OfCluster),
		Registrations: ownOf(h.Shards, requests.List, shard.OfRequest),
	})
	if h.options.Metrics == nil {
		return nil
	}
	if err := h.options.Metrics.Register(h.series); err != nil {
		return fmt.Errorf("registering the metrics of the hub, which two hubs cannot do in one place: %w", err)
	}
	h.endMetrics = func() { h.options.Metrics.Unregister(h.series) }
	return nil
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
