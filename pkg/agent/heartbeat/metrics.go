package heartbeat

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AgentMetrics are the metrics of one agent, which its heartbeats update.
type AgentMetrics struct {
	sent    *prometheus.CounterVec
	expires prometheus.Gauge
	build   prometheus.Gauge
}

// NewAgentMetrics returns the metrics of an agent of this version.
func NewAgentMetrics(version string) *AgentMetrics {
	c := &AgentMetrics{
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_agent_heartbeats_total",
			Help: "Heartbeats of this agent, by whether the hub has accepted them (sent) or not (failed).",
		}, []string{"result"}),
		expires: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "muster_agent_credential_expiry_timestamp_seconds",
			Help: "Time at which the credential of this agent expires, in seconds since 1970; 0 if it does not expire, or before the first heartbeat.",
		}),
		build: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "muster_agent_build_info", ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
			Help: "The version of this agent, as a label; the value is 1.",
		}),
	}
	c.build.Set(1)
	c.sent.WithLabelValues("sent")
	c.sent.WithLabelValues("failed")
	return c
}

// Describe implements prometheus.Collector.
func (c *AgentMetrics) Describe(into chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, into) }

// Collect implements prometheus.Collector.
func (c *AgentMetrics) Collect(into chan<- prometheus.Metric) {
	c.sent.Collect(into)
	c.expires.Collect(into)
	c.build.Collect(into)
}

func (c *AgentMetrics) count(err error, expires *metav1.Time) {
	result := "sent"
	if err != nil {
		result = "failed"
	}
	c.sent.WithLabelValues(result).Inc()
	if expires.IsZero() {
		c.expires.Set(0)
		return
	}
	c.expires.Set(float64(expires.Unix()))
}
