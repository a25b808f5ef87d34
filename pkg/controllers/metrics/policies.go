package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-fleet/muster/pkg/admission"
)

var policies = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "admission_policy_in_force"),
	"Whether this admission policy and its binding exist and equal those of this hub.", []string{"kind", "policy"}, nil)

// Policies reports the state of each admission policy of the API server at each scrape.
type Policies func() map[admission.PolicyRef]bool

// Describe implements prometheus.Collector.
func (p Policies) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- policies }

// Collect implements prometheus.Collector.
func (p Policies) Collect(into chan<- prometheus.Metric) {
	for policy, inForce := range p() {
		value := 0.0
		if inForce {
			value = 1
		}
		into <- prometheus.MustNewConstMetric(policies, prometheus.GaugeValue, value, policy.Kind, policy.Name)
	}
}
