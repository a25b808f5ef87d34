package registration

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// reading is the value of a series with these label values; for a histogram, the number of observations.
func reading(t *testing.T, registry *prometheus.Registry, name string, labels ...string) (value float64) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			matches := family.GetName() == name && len(metric.GetLabel()) == len(labels)
			for i := 0; matches && i < len(labels); i++ {
				matches = metric.GetLabel()[i].GetValue() == labels[i]
			}
			if matches {
				value += metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return value
}

func TestMetrics(t *testing.T) {
	hub := testenv.SharedCluster(t, "hub")
	hub.Configure(t, hub.Reachable())
	registry := prometheus.NewRegistry()
	running := hub.Hub(t, func(o *muster.Options) { o.Metrics = registry })
	namespace, agentNamespace := hub.Namespace(t), hub.Namespace(t)
	values := hub.Token(t, namespace, "tok", fleet.ClusterRegistrationTokenSpec{})
	testenv.BootstrapAgent(t, hub, agentNamespace, values, map[string]string{"config": `{"clientID":"counted"}`})
	require.Zero(t, reading(t, registry, "muster_registrations_granted_total"))

	hub.Agent(t, agentNamespace)
	hub.ClusterCondition(t, namespace, registration.ClusterName("counted"), fleet.ConditionRegistered, "True")
	// The caches of the hub may be behind what the test has read.
	require.Eventually(t, func() bool {
		return reading(t, registry, "muster_clusters", fleet.ConditionRegistered, "True") == 1 &&
			reading(t, registry, "muster_cluster_registrations", "granted") == 1 &&
			reading(t, registry, "muster_registrations_granted_total") == 1 &&
			reading(t, registry, "muster_registration_duration_seconds") == 1
	}, testenv.Patience, 20*time.Millisecond)

	running.Stop(t)
	require.Zero(t, reading(t, registry, "muster_clusters", fleet.ConditionRegistered, "True"), "the caches of a hub that has ended stand still")
}
