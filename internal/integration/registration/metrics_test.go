package registration

import (
	"regexp"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
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
	registerer, err := launch.Metrics(t.Context(), "")
	require.NoError(t, err)
	registry := registerer.(*prometheus.Registry)
	launch.MeasureRequests(launch.HostOf(hub.RESTConfig()))
	running := hub.Hub(t, func(o *muster.Options) { o.Metrics = registry })
	namespace, agentNamespace := hub.Namespace(t), hub.Namespace(t)
	values := hub.Token(t, namespace, "tok", fleet.ClusterRegistrationTokenSpec{})
	testenv.BootstrapAgent(t, hub, agentNamespace, values, map[string]string{"config": `{"clientID":"counted"}`})
	require.Zero(t, reading(t, registry, "muster_registrations_granted_total"))

	hub.Agent(t, agentNamespace)
	hub.ClusterCondition(t, namespace, registration.ClusterName("counted"), fleet.ConditionRegistered, "True")
	// The caches of the hub may be older than the objects that the test has read.
	require.Eventually(t, func() bool {
		return reading(t, registry, "muster_clusters", fleet.ConditionRegistered, "True") == 1 &&
			reading(t, registry, "muster_cluster_registrations", "granted") == 1 &&
			reading(t, registry, "muster_registrations_granted_total") == 1 &&
			reading(t, registry, "muster_registration_duration_seconds") == 1
	}, testenv.Patience, 20*time.Millisecond)

	require.Eventually(t, func() bool {
		return reading(t, registry, "muster_registration_first_heartbeat_seconds", metrics.ApprovalAuto, metrics.WayAgent) == 1
	}, testenv.Patience, 20*time.Millisecond)
	requireMonitored(t, registry)

	running.Stop(t)
	require.Zero(t, reading(t, registry, "muster_clusters", fleet.ConditionRegistered, "True"), "the caches of a hub that has ended stand still")
}

// requireMonitored requires that the hub has each metric that the alerts and the dashboard of the chart name. Those that count rare
// failures appear with the first one.
func requireMonitored(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	families, err := prometheus.Gatherers{registry, lasso}.Gather()
	require.NoError(t, err)
	exist := map[string]bool{"muster_members_left_total": true, "muster_orphans_left": true, "muster_registrations_over_limit_total": true}
	for _, family := range families {
		exist[family.GetName()] = true
		if family.GetType().String() == "HISTOGRAM" {
			exist[family.GetName()+"_bucket"], exist[family.GetName()+"_count"] = true, true
		}
	}
	for _, file := range []string{"fleet/files/rules.yaml", "fleet/files/dashboard.json"} {
		content, err := charts.Files.ReadFile(file)
		require.NoError(t, err)
		names := regexp.MustCompile(`\b(muster|workqueue|lasso_controller|rest_client|process)_[a-z_]+\b`).FindAllString(string(content), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			assert.True(t, exist[name], "%s: the hub has no metric %s", file, name)
		}
	}
}
