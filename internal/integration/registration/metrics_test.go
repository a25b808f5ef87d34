package registration

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/internal/testenv/series"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// reading is the value of a series with these label values; for a histogram, the number of observations.
func reading(t *testing.T, registry *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	return series.Values(t, registry)[strings.Join(append([]string{name}, labels...), " ")]
}

func TestMetrics(t *testing.T) {
	sample.Long(t)
	hub := testenv.SharedCluster(t, "hub")
	hub.Configure(t, hub.Reachable())
	registerer, err := launch.Metrics(t.Context(), "")
	require.NoError(t, err)
	registry := registerer.(*prometheus.Registry)
	launch.MeasureRequests(launch.HostOf(hub.RESTConfig()))
	running := hub.Hub(t, func(o *muster.Options) { o.Metrics, o.FleetMetrics = registry, true })
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
	name := registration.ClusterName("counted")
	require.Eventually(t, func() bool {
		return reading(t, registry, "fleet_cluster_state", "", "", "1", name, namespace, "Ready")+
			reading(t, registry, "fleet_cluster_state", "", "", "1", name, namespace, "NotReady") == 1 &&
			reading(t, registry, "fleet_bundle_desired_ready", "", "1", registration.AgentBundleName(name), namespace, "") == 1
	}, testenv.Patience, 20*time.Millisecond)

	running.Stop(t)
	require.Zero(t, reading(t, registry, "muster_clusters", fleet.ConditionRegistered, "True"), "a hub that has ended must not report Clusters from its caches, which no longer change")
}

// requireMonitored requires that the hub has each metric that the alerts and the dashboard of the chart name. Those that count rare
// failures appear with the first one.
func requireMonitored(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	families, err := prometheus.Gatherers{registry, lasso}.Gather()
	require.NoError(t, err)
	exist := map[string]bool{"muster_members_left_total": true, "muster_orphans_left": true}
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
