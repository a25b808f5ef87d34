package metrics

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// fleetNames has the metrics of one object of each kind under the names of Fleet's own controllers.
func fleetNames(cluster *fleet.Cluster, group *fleet.ClusterGroup, b *fleet.Bundle, d *fleet.BundleDeployment) *prometheus.Registry {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(FleetCollector{
		Clusters:          func() ([]*fleet.Cluster, error) { return []*fleet.Cluster{cluster}, nil },
		Groups:            func() ([]*fleet.ClusterGroup, error) { return []*fleet.ClusterGroup{group}, nil },
		Bundles:           func() ([]*fleet.Bundle, error) { return []*fleet.Bundle{b}, nil },
		BundleDeployments: func() ([]*fleet.BundleDeployment, error) { return []*fleet.BundleDeployment{d}, nil },
	})
	return registry
}

func TestFleetCollector(t *testing.T) {
	meta := func(name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ws", Name: name, Generation: 3, Labels: labels}
	}
	counts := fleet.ResourceCounts{DesiredReady: 8, Ready: 1, NotReady: 2, Missing: 3, Modified: 4, Orphaned: 5, Unknown: 6, WaitApplied: 7}
	summary := fleet.BundleSummary{DesiredReady: 9, Ready: 1, NotReady: 2, Modified: 3, OutOfSync: 4, Pending: 5, WaitApplied: 6, ErrApplied: 7}
	cluster := &fleet.Cluster{ObjectMeta: meta("c", map[string]string{fleet.ManagementClusterLabel: "c-1", fleet.ClusterDisplayNameLabel: "C 1"})}
	cluster.Status.ReadyGitRepos, cluster.Status.DesiredReadyGitRepos, cluster.Status.ResourceCounts = 1, 2, counts
	group := &fleet.ClusterGroup{ObjectMeta: meta("g", nil)}
	group.Status.ClusterCount, group.Status.NonReadyClusterCount, group.Status.Summary, group.Status.ResourceCounts = 2, 1, summary, counts
	madeFrom := map[string]string{fleet.RepoLabel: "r", fleet.CommitLabel: "f00"}
	b := &fleet.Bundle{ObjectMeta: meta("b", madeFrom)}
	b.Status.Summary, b.Status.Display.State = summary, "Modified"
	d := &fleet.BundleDeployment{ObjectMeta: meta("b", map[string]string{
		fleet.RepoLabel: "r", fleet.CommitLabel: "f00", fleet.ClusterLabel: "c", fleet.WorkspaceLabel: "ws",
		fleet.BundleNameLabel: "b", fleet.BundleNamespaceLabel: "ws",
	})}
	d.Namespace, d.Spec.DeploymentID = "cluster-c", "s-1:1"

	registry := fleetNames(cluster, group, b, d)
	var series []string
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if value := metric.GetGauge().GetValue(); value != 0 {
				labels := ""
				for _, label := range metric.GetLabel() {
					labels += label.GetName() + "=" + label.GetValue() + " "
				}
				series = append(series, fmt.Sprintf("%s %s%g", strings.TrimPrefix(family.GetName(), "fleet_"), labels, value))
			}
		}
	}
	const (
		bundle = "commit=f00 generation=3 name=b namespace=ws repo=r "
		c      = "cluster_display_name=C 1 cluster_name=c-1 generation=3 name=c namespace=ws "
		g      = "generation=3 name=g namespace=ws "
	)
	assert.Equal(t, []string{
		"bundle_desired_ready " + bundle + "9", "bundle_err_applied " + bundle + "7", "bundle_modified " + bundle + "3", "bundle_not_ready " + bundle + "2",
		"bundle_out_of_sync " + bundle + "4", "bundle_pending " + bundle + "5", "bundle_ready " + bundle + "1", "bundle_state " + bundle + "state=Modified 1",
		"bundle_wait_applied " + bundle + "6",
		"bundledeployment_state bundle=b bundle_namespace=ws cluster_name=c cluster_namespace=ws commit=f00 generation=3 name=b namespace=cluster-c repo=r state=WaitApplied 1",
		"cluster_desired_ready_git_repos " + c + "2",
		"cluster_group_bundle_desired_ready " + g + "9", "cluster_group_bundle_ready " + g + "1", "cluster_group_cluster_count " + g + "2",
		"cluster_group_non_ready_cluster_count " + g + "1", "cluster_group_resource_count_desired_ready " + g + "8",
		"cluster_group_resource_count_missing " + g + "3", "cluster_group_resource_count_modified " + g + "4", "cluster_group_resource_count_notready " + g + "2",
		"cluster_group_resource_count_orphaned " + g + "5", "cluster_group_resource_count_ready " + g + "1", "cluster_group_resource_count_unknown " + g + "6",
		"cluster_group_resource_count_waitapplied " + g + "7", "cluster_group_state " + g + "state=NotReady 1",
		"cluster_ready_git_repos " + c + "1", "cluster_resources_count_desiredready " + c + "8", "cluster_resources_count_missing " + c + "3",
		"cluster_resources_count_modified " + c + "4", "cluster_resources_count_notready " + c + "2", "cluster_resources_count_orphaned " + c + "5",
		"cluster_resources_count_ready " + c + "1", "cluster_resources_count_unknown " + c + "6", "cluster_resources_count_waitapplied " + c + "7",
		"cluster_state " + c + "state=Ready 1",
	}, series)
	zeros, err := testutil.GatherAndCount(registry, "fleet_cluster_state", "fleet_cluster_group_state", "fleet_bundle_state", "fleet_bundledeployment_state")
	require.NoError(t, err)
	assert.Equal(t, 3+2+7+7, zeros, "each state has a series")

	cluster.Status.Display.State = "WaitCheckIn"
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
		# HELP fleet_cluster_state Whether a cluster is in the state.
		# TYPE fleet_cluster_state gauge
		fleet_cluster_state{cluster_display_name="C 1",cluster_name="c-1",generation="3",name="c",namespace="ws",state="NotReady"} 0
		fleet_cluster_state{cluster_display_name="C 1",cluster_name="c-1",generation="3",name="c",namespace="ws",state="Ready"} 0
		fleet_cluster_state{cluster_display_name="C 1",cluster_name="c-1",generation="3",name="c",namespace="ws",state="WaitCheckIn"} 1
	`), "fleet_cluster_state"))
}

func TestFleetCollector_besideFleet(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(FleetCollector{Clusters: func() ([]*fleet.Cluster, error) { return nil, errors.New("no cache") }})
	_, err := registry.Gather()
	require.ErrorContains(t, err, "no cache")
	require.NoError(t, registry.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: "fleet_bundle_ready", Help: "of Fleet's own controllers"})))
}
