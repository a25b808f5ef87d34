// Package metrics has the hub's Prometheus metrics.
package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/version"
)

const namespace = "muster"

// Counters are the metrics that the controllers of one hub update.
type Counters struct {
	// OrphansCollected counts objects that were deleted because their owner does not exist, by kind.
	OrphansCollected *prometheus.CounterVec
	// OrphansLeft is the number of orphans that the last walk could not delete, by kind.
	OrphansLeft *prometheus.GaugeVec
	// MembersNotCleaned counts deleted Clusters on whose member something may be left, by reason.
	MembersNotCleaned *prometheus.CounterVec

	// OverLimit counts requests that were refused, or have to wait, because too many others have led to no connected agent yet, by reason.
	OverLimit *prometheus.CounterVec

	// granted counts the granted registrations, and took has the times from their creation to the grant.
	granted prometheus.Counter
	took    prometheus.Histogram

	refused        *prometheus.CounterVec
	registered     *prometheus.HistogramVec
	imported       prometheus.Histogram
	importFailures *prometheus.CounterVec
	heartbeats     prometheus.Counter
	lateness       prometheus.Histogram
}

// The ways in which a cluster is registered.
const (
	WayAgent   = "agent"   // a person installed the agent with a token
	WayManager = "manager" // the hub installed the agent with a kubeconfig
	WayLocal   = "local"   // the hub's own cluster
)

// Whether a person approved a request.
const (
	ApprovalAuto   = "auto"
	ApprovalManual = "manual"
)

// Prometheus does not see the first increase of a series that appears with it, so all series exist from the start.
var (
	refusalReasons = []string{
		fleet.ReasonClientIDAmbiguous, fleet.ReasonClientIDEmpty, fleet.ReasonClientIDInUse, fleet.ReasonClientIDNotAllowed,
		fleet.ReasonClientIDTooLong, fleet.ReasonClusterNameTaken, fleet.ReasonCredentialRevoked, fleet.ReasonDenied, fleet.ReasonError,
		fleet.ReasonLongLivedRefused, fleet.ReasonNameConflict, fleet.ReasonPoliciesRequired, fleet.ReasonQuarantined,
		fleet.ReasonSuperseded, fleet.ReasonTokenInvalid, fleet.ReasonTokenMismatch, fleet.ReasonTokenNotFound, fleet.ReasonTokenUnknown, fleet.ReasonTokenUsedUp,
		fleet.ReasonTooLarge, fleet.ReasonTooManyWaiting,
	}
	overLimitReasons     = []string{fleet.ReasonTooManyUnconnected, fleet.ReasonTooManyWaiting}
	importFailureReasons = []string{
		fleet.ReasonAddressNotAllowed, fleet.ReasonCertificateUntrusted, fleet.ReasonError, fleet.ReasonForbidden,
		fleet.ReasonMemberError, fleet.ReasonUnauthorized, fleet.ReasonUnreachable,
	}
)

// buckets of the duration of a registration, in seconds. The long ones are for requests that a person has to approve.
var buckets = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// Granted counts a granted registration, with the time since its creation. The time may be negative: the creation time is in full seconds and
// by the clock of the API server.
func (h *Counters) Granted(took time.Duration) {
	h.granted.Inc()
	h.took.Observe(max(took, 0).Seconds())
}

// heartbeatBuckets of the time from a request to the first heartbeat, in seconds, with a bound at the objective of 5 seconds.
var heartbeatBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 15, 30, 60, 120, 300, 600, 1800}

// importBuckets of the duration of a call to a member, in seconds: it is limited to a minute.
var importBuckets = []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60}

// latenessBuckets of heartbeats, in seconds. Agents vary the interval a little; by default it is a minute, or 15 minutes for agents that write to the status.
var latenessBuckets = []float64{0.1, 1, 5, 15, 60, 300, 900, 3600}

// Refused counts a request that this hub has refused.
func (h *Counters) Refused(reason string) { h.refused.WithLabelValues(reason).Inc() }

// Registered counts the first heartbeat after a registration, with the time since the request, or since the hub began to wait for the agent
// that it installs.
func (h *Counters) Registered(way, approval string, took time.Duration) {
	h.registered.WithLabelValues(way, approval).Observe(max(took, 0).Seconds())
}

// Imported counts a call to a member that installs the agent. The reason is empty if it succeeded.
func (h *Counters) Imported(took time.Duration, reason string) {
	h.imported.Observe(took.Seconds())
	if reason != "" {
		h.importFailures.WithLabelValues(reason).Inc()
	}
}

// Heartbeat counts a heartbeat, with the time by which it was later than the interval of its agent.
func (h *Counters) Heartbeat(late time.Duration) {
	h.heartbeats.Inc()
	h.lateness.Observe(max(late, 0).Seconds())
}

// New returns the metrics of a hub. It registers them unless the registerer is nil.
func New(registerer prometheus.Registerer) *Counters {
	register := promauto.With(registerer)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return register.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return register.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
	}
	h := &Counters{
		OrphansCollected: counters("orphans_collected_total", "Objects deleted because their owner does not exist, by kind.", "kind"),
		OrphansLeft: register.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "orphans_left",
			Help: "Orphans that could not be deleted, by kind.",
		}, []string{"kind"}),
		MembersNotCleaned: counters("members_left_total", "Deleted Clusters on whose member something may be left, by reason.", "reason"),
		OverLimit: counters("registrations_over_limit_total",
			"ClusterRegistrations that were refused (TooManyWaiting) or have to wait (TooManyUnconnected) because of registration.limits, by reason.", "reason"),
		granted: counter("registrations_granted_total", "ClusterRegistrations that this hub has granted."),
		took: histogram("registration_duration_seconds",
			"Time from the creation of a ClusterRegistration to its grant, including the time until a person approves it.", buckets),
		refused: counters("registrations_refused_total", "ClusterRegistrations that this hub has refused, by the reason of condition Granted.", "reason"),
		registered: register.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "registration_first_heartbeat_seconds", Buckets: heartbeatBuckets,
			Help: "Time from a ClusterRegistration, or, for an import, from the creation of the Cluster or the end of its registration, to the first heartbeat of the agent, by the way in which the cluster registers (agent, manager or local) and by whether a person approved it (auto or manual).",
		}, []string{"way", "approval"}),
		imported: histogram("import_duration_seconds", "Duration of the calls to members that install an agent, including those that fail.", importBuckets),
		importFailures: counters("import_failures_total",
			"Calls to members that failed to install an agent, by the reason of condition Imported.", "reason"),
		heartbeats: counter("heartbeats_received_total", "Heartbeats of agents that this hub has received."),
		lateness:   histogram("heartbeat_lateness_seconds", "Time by which a heartbeat was later than the interval that its agent has announced.", latenessBuckets),
	}
	if registerer != nil {
		registerer.MustRegister(guard.Panics)
	}
	for _, reason := range refusalReasons {
		h.refused.WithLabelValues(reason)
	}
	for _, reason := range overLimitReasons {
		h.OverLimit.WithLabelValues(reason)
	}
	for _, reason := range importFailureReasons {
		h.importFailures.WithLabelValues(reason)
	}
	for _, way := range []string{WayAgent, WayManager, WayLocal} {
		h.registered.WithLabelValues(way, ApprovalAuto)
		h.registered.WithLabelValues(way, ApprovalManual)
	}
	return h
}

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

// NewLeader returns the metric that is 1 while this hub works, and 0 while it is a standby.
func NewLeader() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "leader",
		Help: "Whether this hub works (1) or is a standby (0).",
	})
}

// NewBuildInfo returns the metric with the version of the hub.
func NewBuildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", ConstLabels: prometheus.Labels{"version": version.Version, "go_version": runtime.Version()},
		Help: "The version of this program, as a label; the value is 1.",
	}, func() float64 { return 1 })
}
