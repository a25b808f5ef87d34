package metrics

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv/golden"
	"github.com/muster-fleet/muster/internal/testenv/series"
	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func cluster(conditions ...string) *fleet.Cluster {
	c := &fleet.Cluster{}
	for i := 0; i < len(conditions); i += 2 {
		c.Status.Conditions = append(c.Status.Conditions,
			genericcondition.GenericCondition{Type: conditions[i], Status: corev1.ConditionStatus(conditions[i+1])})
	}
	return c
}

func request(granted bool, status string) *fleet.ClusterRegistration {
	r := &fleet.ClusterRegistration{Status: fleet.ClusterRegistrationStatus{Granted: granted}}
	if status != "" {
		r.Status.Conditions = cluster(fleet.ConditionGranted, status).Status.Conditions
	}
	return r
}

func TestStateCollector(t *testing.T) {
	var known []*fleet.Cluster
	var requests []*fleet.ClusterRegistration
	registry := prometheus.NewRegistry()
	registry.MustRegister(StateCollector{
		Clusters:      func() ([]*fleet.Cluster, error) { return known, nil },
		Registrations: func() ([]*fleet.ClusterRegistration, error) { return requests, nil },
		Now:           func() time.Time { return noon }, CredentialLifetime: func() time.Duration { return 6 * time.Hour },
	})
	empty := series.Values(t, registry)
	assert.Len(t, empty, 5*3+3+2+4+1, "states that nothing has are exported")
	for name, value := range empty {
		assert.Zero(t, value, name)
	}

	known = []*fleet.Cluster{
		cluster(),
		cluster("Processed", "True", "Registered", "Unknown", "Imported", "False"),
		cluster("Registered", "True", "Connected", "True", "Imported", "True", "Ready", "True"),
		cluster("Registered", "True", "Connected", "False", "Ready", "True", "ReleasesManaged", "False"),
	}
	requests = []*fleet.ClusterRegistration{
		request(true, "True"), request(true, ""), request(false, "False"), request(false, "Unknown"), request(false, ""), request(false, ""),
		request(false, "False"),
	}
	requests[3].Status.Conditions[0].Reason = fleet.ReasonWaitingForApproval
	requests[6].Status.Conditions[0].Reason = fleet.ReasonError // the decision is repeated
	for i, age := range []time.Duration{3 * time.Hour, 3 * time.Hour, 3 * time.Hour, time.Hour, time.Minute, 2 * time.Minute, 3 * time.Minute} {
		requests[i].CreationTimestamp = metav1.NewTime(noon.Add(-age))
	}
	for i, left := range []time.Duration{-time.Minute, 50 * time.Minute, 5 * time.Hour} {
		known[i].Status.Agent.CredentialExpires = &metav1.Time{Time: noon.Add(left)}
	}
	for name, value := range map[string]float64{
		"muster_clusters Registered True": 2, "muster_clusters Registered False": 0, "muster_clusters Registered Unknown": 1,
		"muster_clusters Connected True": 1, "muster_clusters Connected False": 1, "muster_clusters Connected Unknown": 0,
		"muster_clusters Imported True": 1, "muster_clusters Imported False": 1, "muster_clusters Imported Unknown": 0,
		"muster_clusters Ready True": 2, "muster_clusters Ready False": 0, "muster_clusters Ready Unknown": 0,
		"muster_clusters ReleasesManaged True": 0, "muster_clusters ReleasesManaged False": 1, "muster_clusters ReleasesManaged Unknown": 0,
		"muster_cluster_registrations granted": 2, "muster_cluster_registrations refused": 1, "muster_cluster_registrations waiting": 4,
		"muster_oldest_waiting_registration_seconds approval": 3600, "muster_oldest_waiting_registration_seconds other": 180,
		"muster_credentials_expiring 1h": 1, "muster_credentials_expiring 8h": 2,
		"muster_credentials_expiring 24h": 2, "muster_credential_renewals_overdue": 1,
	} {
		empty[name] = value
	}
	assert.Equal(t, empty, series.Values(t, registry))
}

func TestStateCollector_overdueRenewals(t *testing.T) {
	for _, row := range []struct {
		configured, left time.Duration
		overdue          float64
	}{
		{6 * time.Hour, 61 * time.Minute, 0},
		{6 * time.Hour, 59 * time.Minute, 1},
		{168 * time.Hour, 5 * time.Hour, 0}, // the credential of 24 hours from before the change, or the API server limits lifetimes
		{168 * time.Hour, 3 * time.Hour, 1},
	} {
		cluster := &fleet.Cluster{}
		cluster.Status.Agent.CredentialExpires = &metav1.Time{Time: noon.Add(row.left)}
		registry := prometheus.NewRegistry()
		registry.MustRegister(StateCollector{
			Clusters:      func() ([]*fleet.Cluster, error) { return []*fleet.Cluster{cluster}, nil },
			Registrations: func() ([]*fleet.ClusterRegistration, error) { return nil, nil },
			Now:           func() time.Time { return noon }, CredentialLifetime: func() time.Duration { return row.configured },
		})
		assert.InDelta(t, row.overdue, series.Values(t, registry)["muster_credential_renewals_overdue"], 0, "%s of %s", row.left, row.configured)
	}
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestStateCollectorError(t *testing.T) {
	broken := errors.New("no cache")
	registry := prometheus.NewRegistry()
	registry.MustRegister(StateCollector{
		Clusters:      func() ([]*fleet.Cluster, error) { return nil, broken },
		Registrations: func() ([]*fleet.ClusterRegistration, error) { return nil, broken },
	})
	_, err := registry.Gather()
	require.ErrorContains(t, err, "no cache")
}

func TestGranted(t *testing.T) {
	registry := prometheus.NewRegistry()
	hub := New(registry)
	for _, took := range []time.Duration{2 * time.Second, time.Hour, -time.Second} {
		hub.Granted(took)
	}
	values := series.Values(t, registry)
	assert.InDelta(t, 3, values["muster_registrations_granted_total"], 0)
	assert.InDelta(t, 3, values["muster_registration_duration_seconds"], 0)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "muster_registration_duration_seconds" {
			histogram := family.GetMetric()[0].GetHistogram()
			assert.InDelta(t, 3602, histogram.GetSampleSum(), 0, "a negative time counts as 0")
			assert.InDelta(t, 0.01, histogram.GetBucket()[0].GetUpperBound(), 0)
			assert.InDelta(t, 600, histogram.GetBucket()[len(histogram.GetBucket())-1].GetUpperBound(), 0)
		}
	}
}

func TestCounters(t *testing.T) {
	registry := prometheus.NewRegistry()
	hub := New(registry)
	before := series.Values(t, registry)
	for _, rare := range []string{
		"muster_registrations_refused_total ClientIDInUse", "muster_registrations_over_limit_total TooManyUnconnected", "muster_registrations_over_limit_total TooManyWaiting",
	} {
		assert.Contains(t, before, rare, "Prometheus sees no increase if a series appears only when it is first increased")
	}
	hub.Refused(fleet.ReasonClientIDInUse)
	hub.Registered(WayAgent, ApprovalManual, -time.Second)
	hub.Imported(time.Second, "")
	hub.Imported(time.Minute, fleet.ReasonUnreachable)
	hub.Heartbeat(-time.Second)
	changed := map[string]float64{}
	for name, value := range series.Values(t, registry) {
		if before[name] != value {
			changed[name] = value - before[name]
		}
	}
	assert.Equal(t, map[string]float64{
		"muster_registrations_refused_total ClientIDInUse":         1,
		"muster_registration_first_heartbeat_seconds manual agent": 1,
		"muster_import_duration_seconds":                           2,
		"muster_import_failures_total Unreachable":                 1,
		"muster_heartbeats_received_total":                         1,
		"muster_heartbeat_lateness_seconds":                        1,
	}, changed)
}

// allMetrics returns the metrics of a hub that works.
func allMetrics() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	hub := New(registry)
	hub.OrphansCollected.WithLabelValues("Secret")
	hub.OrphansLeft.WithLabelValues("Secret")
	hub.MembersNotCleaned.WithLabelValues("Disconnected")
	registry.MustRegister(NewLeader(), NewBuildInfo(), StateCollector{
		Clusters:      func() ([]*fleet.Cluster, error) { return nil, nil },
		Registrations: func() ([]*fleet.ClusterRegistration, error) { return nil, nil },
		Now:           func() time.Time { return noon }, CredentialLifetime: func() time.Duration { return time.Hour },
	}, Policies(func() map[admission.PolicyRef]bool { return map[admission.PolicyRef]bool{{Kind: "K", Name: "n"}: true} }))
	return registry
}

const page = "../../../docs/metrics.md"

// The reference page has every metric, with its help.
func TestReference(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Metrics\n\nThe hub serves these metrics; a standby has only `muster_build_info` and `muster_leader`. " +
		"[Operations](operations.md#metrics-and-probes)\nshows how to read them, and which alerts and dashboard use them. " +
		"A test writes this page.\n\n")
	writeTable := func(metrics prometheus.Gatherer) {
		families, err := metrics.Gather()
		require.NoError(t, err)
		text.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
		for _, family := range families {
			var labels []string
			for _, label := range family.GetMetric()[0].GetLabel() {
				labels = append(labels, "`"+label.GetName()+"`")
			}
			fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n",
				family.GetName(), strings.ToLower(family.GetType().String()), strings.Join(labels, ", "), family.GetHelp())
		}
	}
	writeTable(allMetrics())
	text.WriteString("\n## Metrics of Fleet's own controllers\n\nWith `metrics.fleetNames` of the chart `fleet`, the hub also serves these metrics under the names that " +
		"Fleet's own\ncontrollers use, for dashboards and alerts that were made for them. There are series for each object, so this is off by default. Beside\n" +
		"Fleet's own controllers, the hub serves only those of Clusters; the process `fleet-bundles` serves the others.\n\n")
	writeTable(fleetNames(&fleet.Cluster{}, &fleet.ClusterGroup{}, &fleet.Bundle{}, &fleet.BundleDeployment{}))
	golden.Equal(t, page, text.String())
}

func TestConventions(t *testing.T) {
	registry := allMetrics()
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		assert.Regexp(t, `^[A-Z].*\.$`, family.GetHelp(), family.GetName())
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				assert.NotContains(t, []string{"cluster", "namespace", "name", "host"}, label.GetName(), "%s would have a series for each cluster", family.GetName())
			}
		}
	}
}

func TestPolicies(t *testing.T) {
	registry := prometheus.NewRegistry()
	status := admission.PolicyRef{Kind: admission.KindValidating, Name: admission.StatusPolicy}
	creator := admission.PolicyRef{Kind: admission.KindMutating, Name: admission.CreatorPolicy}
	registry.MustRegister(Policies(func() map[admission.PolicyRef]bool { return map[admission.PolicyRef]bool{status: false, creator: true} }))
	assert.Equal(t, map[string]float64{
		"muster_admission_policy_in_force ValidatingAdmissionPolicy fleet-agent-status":       0,
		"muster_admission_policy_in_force MutatingAdmissionPolicy fleet-registration-creator": 1,
	}, series.Values(t, registry))
}
