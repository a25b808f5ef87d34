package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// StateCollector counts Clusters and registrations by their state, at each scrape and from the hub's caches: gauges that events
// change would be wrong after a restart.
type StateCollector struct {
	// Clusters and Registrations list the objects that the hub works on, from filled caches. A standby exports no fleet metrics:
	// zeros would be wrong.
	Clusters      func() ([]*fleet.Cluster, error)
	Registrations func() ([]*fleet.ClusterRegistration, error)
	// Now is the time by the clock of the hub.
	Now func() time.Time
	// CredentialLifetime is the lifetime of the credentials that agents renew.
	CredentialLifetime func() time.Duration
}

// States of a registration.
const (
	stateGranted = "granted"
	stateRefused = "refused"
	stateWaiting = "waiting"
)

var (
	counted = [...]string{
		fleet.ConditionRegistered, fleet.ConditionConnected, fleet.ConditionImported, fleet.ConditionReady, fleet.ConditionReleasesManaged,
	}
	statuses = [...]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	states   = [...]string{stateGranted, stateRefused, stateWaiting}
)

var (
	clusters = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "clusters"),
		"Clusters that have the condition, by its type and status.", []string{"condition", "status"}, nil)
	registrations = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "cluster_registrations"),
		"ClusterRegistrations, by whether they are granted, refused or waiting. One whose decision failed with an error is waiting.", []string{"state"}, nil)
	oldestWaiting = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "oldest_waiting_registration_seconds"),
		"Age of the oldest ClusterRegistration that waits, by whether it waits for an approval or for something else; 0 if none waits.", []string{"waits_for"}, nil)
	credentialsExpiring = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "credentials_expiring"),
		"Clusters whose agent's credential expires within the time that label `within` names.", []string{"within"}, nil)
	renewalsOverdue = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "credential_renewals_overdue"),
		"Clusters whose agent should have renewed its credential: less than a sixth of the configured lifetime is left, and less than four hours, and it has not expired.", nil, nil)
)

// What a request waits for.
const (
	waitsForApproval = "approval"
	waitsForOther    = "other"
)

// horizons are the times ahead for which expiring credentials are counted.
var horizons = []struct {
	label  string
	within time.Duration
}{{"10m", 10 * time.Minute}, {"1h", time.Hour}, {"8h", 8 * time.Hour}, {"24h", 24 * time.Hour}}

// overduePart is the part of a credential's lifetime that is left when its renewal is overdue. Agents renew it when a third is left. The lifetime of a
// credential may be shorter than the configured one: the API server may limit it, and a longer one is configured before agents have it. So no credential
// is overdue of which more than overduePart of the default lifetime is left.
const overduePart = 6

// Describe implements prometheus.Collector.
func (c StateCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- clusters
	descriptions <- registrations
	descriptions <- oldestWaiting
	descriptions <- credentialsExpiring
	descriptions <- renewalsOverdue
}

// Collect implements prometheus.Collector. A state without objects is exported as 0: an alert must distinguish it from a missing hub.
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
	c.collectCredentials(all, into)
}

func (c StateCollector) collectCredentials(all []*fleet.Cluster, into chan<- prometheus.Metric) {
	now, overdue, expiring := c.Now(), 0, make([]int, len(horizons))
	overdueAt := min(c.CredentialLifetime(), config.DefaultCredentialLifetime) / overduePart
	for _, cluster := range all {
		if cluster.Status.Agent.CredentialExpires.IsZero() {
			continue
		}
		left := cluster.Status.Agent.CredentialExpires.Sub(now)
		if left <= 0 { // it has expired: condition Registered reports that
			continue
		}
		if left < overdueAt {
			overdue++
		}
		for i, horizon := range horizons {
			if left < horizon.within {
				expiring[i]++
			}
		}
	}
	into <- prometheus.MustNewConstMetric(renewalsOverdue, prometheus.GaugeValue, float64(overdue))
	for i, horizon := range horizons {
		into <- prometheus.MustNewConstMetric(credentialsExpiring, prometheus.GaugeValue, float64(expiring[i]), horizon.label)
	}
}

func (c StateCollector) collectRegistrations(into chan<- prometheus.Metric) {
	all, err := c.Registrations()
	if err != nil {
		into <- prometheus.NewInvalidMetric(registrations, err)
		return
	}
	count, oldest, now := map[string]int{}, map[string]time.Duration{}, c.Now()
	for _, request := range all {
		state := stateOf(request)
		count[state]++
		if state == stateWaiting {
			waitsFor := waitsForOther
			if fleetstatus.Condition(request.Status.Conditions, fleet.ConditionGranted).Reason == fleet.ReasonWaitingForApproval {
				waitsFor = waitsForApproval
			}
			oldest[waitsFor] = max(oldest[waitsFor], now.Sub(request.CreationTimestamp.Time))
		}
	}
	for _, waitsFor := range []string{waitsForApproval, waitsForOther} {
		into <- prometheus.MustNewConstMetric(oldestWaiting, prometheus.GaugeValue, oldest[waitsFor].Seconds(), waitsFor)
	}
	for _, state := range states {
		into <- prometheus.MustNewConstMetric(registrations, prometheus.GaugeValue, float64(count[state]), state)
	}
}

func stateOf(request *fleet.ClusterRegistration) string {
	if request.Status.Granted {
		return stateGranted
	}
	if _, isRefused := registration.RefusalOf(request); isRefused {
		return stateRefused
	}
	return stateWaiting
}
