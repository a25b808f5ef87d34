package metrics

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// FleetCollector exports the states of objects under the names that Fleet's own controllers use, for dashboards and alerts that were made for
// them. There are series for each object. They are computed at each scrape from the hub's caches.
type FleetCollector struct {
	// Clusters lists the Clusters that the hub works on.
	Clusters func() ([]*fleet.Cluster, error)
	// Groups, Bundles and BundleDeployments are nil beside Fleet's own controllers, which export these themselves.
	Groups            func() ([]*fleet.ClusterGroup, error)
	Bundles           func() ([]*fleet.Bundle, error)
	BundleDeployments func() ([]*fleet.BundleDeployment, error)
}

// fleetKind has the metrics of one kind.
type fleetKind struct {
	numbers map[string]*prometheus.Desc // by the end of the name
	state   *prometheus.Desc
	states  []fleet.BundleState // each is a series of the metric of the state, which is 1 for the state of the object and 0 for the others
}

const (
	waitCheckIn = fleet.BundleState("WaitCheckIn")
	// stateLabel is the label with the state in the metric of the state.
	stateLabel = "state"
)

func newFleetKind(subsystem string, labels []string, states []fleet.BundleState, numbers ...string) fleetKind {
	kind := fleetKind{numbers: map[string]*prometheus.Desc{}, states: states}
	text := strings.ReplaceAll(subsystem, "_", " ")
	for _, name := range numbers {
		kind.numbers[name] = prometheus.NewDesc(prometheus.BuildFQName("fleet", subsystem, name), "The number "+name+" in the status of a "+text+".", labels, nil)
	}
	kind.state = prometheus.NewDesc(prometheus.BuildFQName("fleet", subsystem, stateLabel), "Whether a "+text+" is in the state.",
		append(labels[:len(labels):len(labels)], stateLabel), nil)
	return kind
}

var (
	bundleStates = []fleet.BundleState{
		fleet.Ready, fleet.NotReady, fleet.Pending, fleet.OutOfSync, fleet.Modified, fleet.WaitApplied, fleet.ErrApplied,
	}
	fleetCluster = newFleetKind("cluster", []string{"name", "namespace", "cluster_name", "cluster_display_name", "generation"},
		[]fleet.BundleState{fleet.NotReady, fleet.Ready, waitCheckIn},
		"desired_ready_git_repos", "ready_git_repos", "resources_count_desiredready", "resources_count_missing", "resources_count_modified",
		"resources_count_notready", "resources_count_orphaned", "resources_count_ready", "resources_count_unknown", "resources_count_waitapplied")
	fleetGroup = newFleetKind("cluster_group", []string{"name", "namespace", "generation"}, []fleet.BundleState{fleet.NotReady, fleet.Ready},
		"bundle_desired_ready", "bundle_ready", "cluster_count", "non_ready_cluster_count", "resource_count_desired_ready", "resource_count_missing",
		"resource_count_modified", "resource_count_notready", "resource_count_orphaned", "resource_count_ready", "resource_count_unknown",
		"resource_count_waitapplied")
	fleetBundle = newFleetKind("bundle", []string{"name", "namespace", "commit", "repo", "generation"}, bundleStates,
		"desired_ready", "err_applied", "modified", "not_ready", "out_of_sync", "pending", "ready", "wait_applied")
	fleetDeployment = newFleetKind("bundledeployment",
		[]string{"name", "namespace", "cluster_name", "cluster_namespace", "repo", "commit", "bundle", "bundle_namespace", "generation"}, bundleStates)
)

// Describe implements prometheus.Collector.
func (c FleetCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for kind, isServed := range map[*fleetKind]bool{
		&fleetCluster: c.Clusters != nil, &fleetGroup: c.Groups != nil, &fleetBundle: c.Bundles != nil, &fleetDeployment: c.BundleDeployments != nil,
	} {
		if isServed {
			descriptions <- kind.state
			for _, description := range kind.numbers {
				descriptions <- description
			}
		}
	}
}

// Collect implements prometheus.Collector.
func (c FleetCollector) Collect(into chan<- prometheus.Metric) {
	collectEach(c.Clusters, fleetCluster, into, func(cluster *fleet.Cluster) {
		n := cluster.Status.ResourceCounts
		state := fleet.NotReady
		switch shown := fleet.BundleState(cluster.Status.Display.State); shown {
		case "":
			state = fleet.Ready
		case waitCheckIn:
			state = waitCheckIn
		default:
		}
		fleetCluster.collect(into, map[string]int{
			"desired_ready_git_repos": cluster.Status.DesiredReadyGitRepos, "ready_git_repos": cluster.Status.ReadyGitRepos,
			"resources_count_desiredready": n.DesiredReady, "resources_count_missing": n.Missing, "resources_count_modified": n.Modified,
			"resources_count_notready": n.NotReady, "resources_count_orphaned": n.Orphaned, "resources_count_ready": n.Ready,
			"resources_count_unknown": n.Unknown, "resources_count_waitapplied": n.WaitApplied,
		}, state, cluster.Name, cluster.Namespace, cluster.Labels[fleet.ManagementClusterLabel], cluster.Labels[fleet.ClusterDisplayNameLabel],
			generation(cluster.Generation))
	})
	collectEach(c.Groups, fleetGroup, into, func(group *fleet.ClusterGroup) {
		n := group.Status.ResourceCounts
		state := fleet.Ready
		if group.Status.NonReadyClusterCount > 0 {
			state = fleet.NotReady
		}
		fleetGroup.collect(into, map[string]int{
			"bundle_desired_ready": group.Status.Summary.DesiredReady, "bundle_ready": group.Status.Summary.Ready,
			"cluster_count": group.Status.ClusterCount, "non_ready_cluster_count": group.Status.NonReadyClusterCount,
			"resource_count_desired_ready": n.DesiredReady, "resource_count_missing": n.Missing, "resource_count_modified": n.Modified,
			"resource_count_notready": n.NotReady, "resource_count_orphaned": n.Orphaned, "resource_count_ready": n.Ready,
			"resource_count_unknown": n.Unknown, "resource_count_waitapplied": n.WaitApplied,
		}, state, group.Name, group.Namespace, generation(group.Generation))
	})
	collectEach(c.Bundles, fleetBundle, into, func(b *fleet.Bundle) {
		s := b.Status.Summary
		state := fleet.BundleState(b.Status.Display.State)
		if state == "" {
			state = fleet.Ready
		}
		fleetBundle.collect(into, map[string]int{
			"desired_ready": s.DesiredReady, "err_applied": s.ErrApplied, "modified": s.Modified, "not_ready": s.NotReady,
			"out_of_sync": s.OutOfSync, "pending": s.Pending, "ready": s.Ready, "wait_applied": s.WaitApplied,
		}, state, b.Name, b.Namespace, b.Labels[fleet.CommitLabel], b.Labels[fleet.RepoLabel], generation(b.Generation))
	})
	collectEach(c.BundleDeployments, fleetDeployment, into, func(d *fleet.BundleDeployment) {
		fleetDeployment.collect(into, nil, fleetstatus.BundleState(d.Spec, d.Status), d.Name, d.Namespace,
			d.Labels[fleet.ClusterLabel], d.Labels[fleet.WorkspaceLabel], d.Labels[fleet.RepoLabel], d.Labels[fleet.CommitLabel],
			d.Labels[fleet.BundleNameLabel], d.Labels[fleet.BundleNamespaceLabel], generation(d.Generation))
	})
}

// collectEach calls collect for each object of a kind.
func collectEach[T any](list func() ([]T, error), kind fleetKind, into chan<- prometheus.Metric, collect func(T)) {
	if list == nil {
		return
	}
	all, err := list()
	if err != nil {
		into <- prometheus.NewInvalidMetric(kind.state, err)
		return
	}
	for _, object := range all {
		collect(object)
	}
}

// collect exports the series of one object.
func (k fleetKind) collect(into chan<- prometheus.Metric, numbers map[string]int, state fleet.BundleState, labels ...string) {
	for name, description := range k.numbers {
		into <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, float64(numbers[name]), labels...)
	}
	for _, s := range k.states {
		value := 0.0
		if s == state {
			value = 1
		}
		into <- prometheus.MustNewConstMetric(k.state, prometheus.GaugeValue, value, append(labels[:len(labels):len(labels)], string(s))...)
	}
}

func generation(n int64) string { return strconv.FormatInt(n, 10) }
