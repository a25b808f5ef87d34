// Package heartbeat reports to the hub that the agent is alive, and what it knows about itself and its cluster, in status.agent
// of the Cluster.
package heartbeat

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Heartbeat sends the heartbeats of one agent.
type Heartbeat struct {
	Member *member.Member
	Clock  clock.WithTicker
	Timing timing.Durations
	Log    logrus.FieldLogger
	// Interval is the time between two heartbeats.
	Interval time.Duration
	// Version and Generation are those of the agent; see agent.Config.
	Version, Generation string
	// Instance distinguishes this process from another one with the same credential.
	Instance string
	// Metrics counts the heartbeats; nil counts none.
	Metrics *AgentMetrics
	// Notes are what the agent reports beside its regular state.
	Notes *Notes
}

// Run sends a heartbeat at once, after each interval, and when the Notes ask for one, until ctx ends. It returns an error when the
// hub certainly rejects the credential. A heartbeat that fails is retried with backoff, not after the interval, so that after an outage of
// the hub all agents are connected again within minutes.
func (h *Heartbeat) Run(ctx context.Context, use *credential.InUse) error {
	rejections := hubclient.NewRejectionThreshold(h.Timing)
	retries := h.Timing.RetryHeartbeat(h.Interval)
	for ctx.Err() == nil {
		notes, wake := h.Notes.read()
		cluster := use.Stored()
		err := use.Conn.PatchAgentStatus(ctx, cluster.Workspace, cluster.ClusterName, h.report(ctx, use, notes))
		if h.Metrics != nil {
			h.Metrics.count(err, use.Expires())
		}
		if rejected := rejections.Check(err, h.Clock.Now()); rejected != nil {
			return rejected
		}
		pause := timing.Jitter(h.Interval)
		if err == nil {
			retries = h.Timing.RetryHeartbeat(h.Interval)
		} else if ctx.Err() == nil {
			pause = min(pause, retries.Step())
			h.Log.WithField(registration.LogCluster, cluster.Workspace+"/"+cluster.ClusterName).Warnf("Heartbeat of cluster %s/%s failed, next try in %s: %v",
				cluster.Workspace, cluster.ClusterName, pause.Round(time.Millisecond), err)
		}
		timing.Pause(ctx, h.Clock, pause, wake)
	}
	return nil
}

// statusPatch is status.agent (fleet.AgentStatus) as a merge patch. A nil field is null in the patch and removes the field: a value
// that could not be read this time must not stay from the time before.
type statusPatch struct {
	LastSeen          string           `json:"lastSeen"`
	Namespace         string           `json:"namespace"`
	CheckinInterval   *metav1.Duration `json:"checkinInterval"`
	Version           *string          `json:"version"`
	Generation        *string          `json:"generation"`
	KubernetesVersion *string          `json:"kubernetesVersion"`
	nodeTotals
	APIServer *apiServerReport `json:"apiServer"`
	ClockSkew *metav1.Duration `json:"clockSkew"`
	Hub       hubReport        `json:"hub"`

	Instance          *string      `json:"instance"`
	CredentialExpires *metav1.Time `json:"credentialExpires"`
	Registration      *string      `json:"registration"`
	PossessionProof   *string      `json:"vouches"`
}

// hubReport is fleet.AgentHub as a patch.
type hubReport struct {
	APIServerURL    *string `json:"apiServerURL"`
	APIServerCAHash *string `json:"apiServerCAHash"`
	AgentTLSMode    *string `json:"agentTLSMode"`
	Pending         *string `json:"pending"`
}

// report never fails: what cannot be read is left out.
func (h *Heartbeat) report(ctx context.Context, use *credential.InUse, notes notes) statusPatch {
	cluster, stored := readClusterInfo(ctx, h.Member, h.Timing.Request), use.Stored()
	r := statusPatch{
		LastSeen:          h.Clock.Now().UTC().Format(time.RFC3339),
		Namespace:         h.Member.Namespace,
		CheckinInterval:   &metav1.Duration{Duration: h.Interval},
		Version:           textOrNull(h.Version),
		Generation:        textOrNull(h.Generation),
		KubernetesVersion: textOrNull(cluster.version),
		nodeTotals:        cluster.nodes,
		APIServer:         cluster.apiServer,
		Hub: hubReport{
			APIServerURL:    textOrNull(stored.Server),
			APIServerCAHash: textOrNull(registration.CAHash(stored.CA)),
			AgentTLSMode:    textOrNull(string(stored.TLSMode())),
			Pending:         textOrNull(notes.pendingEndpoint),
		},
		Instance:          textOrNull(h.Instance),
		CredentialExpires: use.Expires(),
		Registration:      textOrNull(stored.Request),
		PossessionProof:   textOrNull(notes.possessionProof),
	}
	if skew, known := use.Conn.ClockSkew(); known {
		r.ClockSkew = &metav1.Duration{Duration: skew}
	}
	return r
}
