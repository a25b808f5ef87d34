package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

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

// gathered has the value of each series, by its name and label values. The value of a histogram is its number of observations.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := []string{family.GetName()}
			for _, label := range metric.GetLabel() {
				name = append(name, label.GetValue())
			}
			value := metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			values[strings.Join(name, " ")] = value
		}
	}
	return values
}

func TestStateCollector(t *testing.T) {
	var known []*fleet.Cluster
	var requests []*fleet.ClusterRegistration
	registry := prometheus.NewRegistry()
	registry.MustRegister(StateCollector{
		Clusters:      func() ([]*fleet.Cluster, error) { return known, nil },
		Registrations: func() ([]*fleet.ClusterRegistration, error) { return requests, nil },
	})
	empty := gathered(t, registry)
	assert.Len(t, empty, 4*3+3, "states that nothing has are exported")
	for name, value := range empty {
		assert.Zero(t, value, name)
	}

	known = []*fleet.Cluster{
		cluster(),
		cluster("Processed", "True", "Registered", "Unknown", "Imported", "False"),
		cluster("Registered", "True", "Connected", "True", "Imported", "True", "Ready", "True"),
		cluster("Registered", "True", "Connected", "False", "Ready", "True"),
	}
	requests = []*fleet.ClusterRegistration{
		request(true, "True"), request(true, ""), request(false, "False"), request(false, "Unknown"), request(false, ""), request(false, ""),
	}
	for name, value := range map[string]float64{
		"muster_clusters Registered True": 2, "muster_clusters Registered False": 0, "muster_clusters Registered Unknown": 1,
		"muster_clusters Connected True": 1, "muster_clusters Connected False": 1, "muster_clusters Connected Unknown": 0,
		"muster_clusters Imported True": 1, "muster_clusters Imported False": 1, "muster_clusters Imported Unknown": 0,
		"muster_clusters Ready True": 2, "muster_clusters Ready False": 0, "muster_clusters Ready Unknown": 0,
		"muster_cluster_registrations granted": 2, "muster_cluster_registrations refused": 1, "muster_cluster_registrations waiting": 3,
	} {
		empty[name] = value
	}
	assert.Equal(t, empty, gathered(t, registry))
}

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
	values := gathered(t, registry)
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

func TestPolicies(t *testing.T) {
	registry := prometheus.NewRegistry()
	status := admission.PolicyRef{Kind: admission.KindValidating, Name: admission.StatusPolicy}
	creator := admission.PolicyRef{Kind: admission.KindMutating, Name: admission.CreatorPolicy}
	registry.MustRegister(Policies(func() map[admission.PolicyRef]bool { return map[admission.PolicyRef]bool{status: false, creator: true} }))
	assert.Equal(t, map[string]float64{
		"muster_admission_policy_in_force ValidatingAdmissionPolicy fleet-agent-status":       0,
		"muster_admission_policy_in_force MutatingAdmissionPolicy fleet-registration-creator": 1,
	}, gathered(t, registry))
}
