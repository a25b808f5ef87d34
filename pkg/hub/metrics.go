package hub

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
)

// serveMetrics registers the metrics of the controllers, and the numbers of Clusters and registrations, which are counted from the
// caches at each scrape. The result unregisters them, for a program that continues to serve metrics after the hub has stopped.
func (h *hub) serveMetrics(c *app.Context, series *prometheus.Registry) (unregister func(), err error) {
	clusters, requests := c.Fleet.Cluster().Cache(), c.Fleet.ClusterRegistration().Cache()
	series.MustRegister(metrics.StateCollector{
		Clusters:           ownOf(clusters.List),
		Registrations:      ownOf(requests.List),
		Now:                c.Clock.Now,
		CredentialLifetime: func() time.Duration { return c.Config.Get().Registration.Lifetime() },
	})
	if h.options.FleetMetrics {
		collector := metrics.FleetCollector{Clusters: ownOf(clusters.List)}
		if !c.DisableBundles {
			collector.Groups, collector.Bundles = ownOf(c.Fleet.ClusterGroup().Cache().List), ownOf(c.Fleet.Bundle().Cache().List)
			collector.BundleDeployments = ownOf(c.Fleet.BundleDeployment().Cache().List)
		}
		series.MustRegister(collector)
	}
	return h.register(series)
}

// serveProcessMetrics registers the metrics that a standby has too: its version, and that it does not work. The result unregisters them.
func (h *hub) serveProcessMetrics() (unregister func(), err error) {
	series := prometheus.NewRegistry()
	series.MustRegister(h.leading, metrics.NewBuildInfo())
	return h.register(series)
}

// register registers series with the registry of the embedding program, if there is one. The result unregisters them.
func (h *hub) register(series *prometheus.Registry) (unregister func(), err error) {
	if h.options.Metrics == nil {
		return func() {}, nil
	}
	if err := h.options.Metrics.Register(series); err != nil {
		return nil, fmt.Errorf("registering the metrics of the hub (two hubs cannot use the same registry): %w", err)
	}
	return func() { h.options.Metrics.Unregister(series) }, nil
}

// ownOf returns a function that lists the objects of a cache, without the objects that are assigned to another controller.
func ownOf[T metav1.Object](list func(string, labels.Selector) ([]T, error)) func() ([]T, error) {
	return func() (own []T, err error) {
		all, err := list(metav1.NamespaceAll, labels.Everything())
		for _, object := range all {
			if object.GetLabels()[fleet.ClusterManagementLabel] == "" {
				own = append(own, object)
			}
		}
		return own, err
	}
}
