package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// StateCollector counts Clusters and registrations by their state, at each scrape and from the hub's caches: gauges that events
// change would be wrong after a restart.
type StateCollector struct {
	// Clusters and Registrations list the objects that the hub works on, from filled caches. A standby exports no fleet metrics:
	// zeros would be wrong.
	Clusters      func() ([]*fleet.Cluster, error)
	Registrations func() ([]*fleet.ClusterRegistration, error)
}

// States of a registration.
const (
	stateGranted = "granted"
	stateRefused = "refused"
	stateWaiting = "waiting"
)

var (
	counted  = [...]string{fleet.ConditionRegistered, fleet.ConditionConnected, fleet.ConditionImported, fleet.ConditionReady}
	statuses = [...]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	states   = [...]string{stateGranted, stateRefused, stateWaiting}
)

var (
	clusters = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "clusters"),
		"Clusters that have the condition, by its type and status.", []string{"condition", "status"}, nil)
	registrations = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "cluster_registrations"),
		"ClusterRegistrations, by whether they are granted, refused or waiting.", []string{"state"}, nil)
)

// Describe implements prometheus.Collector.
func (c StateCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- clusters
	descriptions <- registrations
}

// Collect implements prometheus.Collector. States that nothing has are exported as 0: an alert must tell that from no hub.
func (c StateCollector) Collect(into chan<- prometheus.Metric) {
	c.collectClusters(into)
	c.collectRegistrations(into)
}

func (c StateCollector) collectClusters(into chan<- prometheus.Metric) {
	all, err := c.Clusters()
	if err != nil {
		into <- prometheus.NewInvalidMetric(clusters, err)
		return
	}
	type series struct {
		condition string
		status    corev1.ConditionStatus
	}
	count := map[series]int{}
	for _, cluster := range all {
		for _, condition := range cluster.Status.Conditions {
			count[series{condition.Type, condition.Status}]++
		}
	}
	for _, condition := range counted {
		for _, status := range statuses {
			n := float64(count[series{condition, status}])
			into <- prometheus.MustNewConstMetric(clusters, prometheus.GaugeValue, n, condition, string(status))
		}
	}
}

func (c StateCollector) collectRegistrations(into chan<- prometheus.Metric) {
	all, err := c.Registrations()
	if err != nil {
		into <- prometheus.NewInvalidMetric(registrations, err)
		return
	}
	count := map[string]int{}
	for _, request := range all {
		count[stateOf(request)]++
	}
	for _, state := range states {
		into <- prometheus.MustNewConstMetric(registrations, prometheus.GaugeValue, float64(count[state]), state)
	}
}

func stateOf(request *fleet.ClusterRegistration) string {
	switch {
	case request.Status.Granted:
		return stateGranted
	case fleetstatus.IsFalse(request.Status.Conditions, fleet.ConditionGranted):
		return stateRefused
	}
	return stateWaiting
}
