// Package heartbeat reports to the hub that the agent is alive, and what it knows about itself and its cluster: in a Lease, which the hub
// copies to status.agent of the Cluster, or in that status itself.
package heartbeat

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Heartbeat sends the heartbeats of one agent.
type Heartbeat struct {
	Member *member.Member
	Clock  clock.WithTicker
	Timing timing.Durations
	Log    logrus.FieldLogger
	// Interval is the time between two heartbeats; 0 means the default of package config, which depends on where they are sent.
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
	retries, reported := (*wait.Backoff)(nil), lastReport{}
	for ctx.Err() == nil {
		notes, wake := h.Notes.read()
		stored := use.Stored()
		interval, err := h.send(ctx, use, notes, &reported)
		if h.Metrics != nil {
			h.Metrics.count(err, use.Expires())
		}
		if rejected := rejections.Check(err, h.Clock.Now()); rejected != nil {
			return rejected
		}
		pause := timing.Jitter(interval)
		switch {
		case err == nil:
			retries = nil
		case ctx.Err() == nil:
			if retries == nil {
				retries = h.Timing.RetryHeartbeat(interval)
			}
			pause = min(pause, retries.Step())
			h.Log.WithField(registration.LogCluster, stored.Workspace+"/"+stored.ClusterName).Warnf("Heartbeat of cluster %s/%s failed, next try in %s: %v",
				stored.Workspace, stored.ClusterName, pause.Round(time.Millisecond), err)
		}
		timing.Pause(ctx, h.Clock, pause, wake)
	}
	return nil
}

// send sends one heartbeat and returns the time until the next: to the agent's Lease or, if the hub makes none, to the status of the
// Cluster. After a downgrade of the hub, the agent may not write the Lease any more, but the status of the Cluster.
func (h *Heartbeat) send(ctx context.Context, use *credential.InUse, notes notes, last *lastReport) (time.Duration, error) {
	stored, now := use.Stored(), h.Clock.Now()
	if stored.Lease != "" {
		interval := cmp.Or(h.Interval, config.DefaultLeaseInterval)
		text, err := last.encode(h.report(ctx, use, notes, interval))
		if err != nil {
			return interval, err
		}
		annotations := map[string]any{registration.LeaseProof: textOrNull(notes.possessionProof)}
		if text != last.text {
			annotations[registration.LeaseReport] = text
		}
		lease, err := use.Conn.PatchLease(ctx, stored.Lease, map[string]any{
			"metadata": map[string]any{"annotations": annotations},
			"spec": map[string]any{
				"holderIdentity": h.Instance, "leaseDurationSeconds": max(1, int(interval.Seconds())), "renewTime": metav1.NewMicroTime(now),
			},
		})
		if err == nil {
			last.text = lease.Annotations[registration.LeaseReport] // the hub may have made another Lease since the last heartbeat
		}
		if !isWithoutLease(err) {
			return interval, err
		}
	}
	interval := cmp.Or(h.Interval, config.DefaultCheckinInterval)
	report := h.report(ctx, use, notes, interval)
	report.LastSeen = now.UTC().Format(time.RFC3339)
	return interval, use.Conn.PatchAgentStatus(ctx, stored.Workspace, stored.ClusterName, report)
}

// isWithoutLease reports whether the hub makes no Lease for this agent any more.
func isWithoutLease(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) }

// skewTolerance is the change of the clock skew below which the agent reports the same skew again: its last digits differ each time.
const skewTolerance = 10 * time.Second

// lastReport is what the agent has written to its Lease. The zero value is ready to use.
type lastReport struct {
	text string // as the hub has it
	skew time.Duration
}

// encode returns the text of a report, which is the same as the last one if nothing has changed that anybody wants to know.
func (l *lastReport) encode(report statusPatch) (string, error) {
	var skew time.Duration
	if report.ClockSkew != nil {
		skew = report.ClockSkew.Duration
	}
	if (skew - l.skew).Abs() >= skewTolerance {
		l.skew = skew
	}
	report.ClockSkew = nil
	if l.skew != 0 {
		report.ClockSkew = &metav1.Duration{Duration: l.skew}
	}
	report.PossessionProof = nil // an annotation of its own
	text, err := json.Marshal(report)
	return string(text), err
}

// statusPatch is status.agent (fleet.AgentStatus) as a merge patch. A nil field is null in the patch and removes the field: a value
// that could not be read this time must not stay from the time before.
type statusPatch struct {
	LastSeen          string           `json:"lastSeen,omitempty"`
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

// report never fails: what cannot be read is left out. LastSeen is empty.
func (h *Heartbeat) report(ctx context.Context, use *credential.InUse, notes notes, interval time.Duration) statusPatch {
	cluster, stored := readClusterInfo(ctx, h.Member, h.Timing.Request), use.Stored()
	r := statusPatch{
		Namespace:         h.Member.Namespace,
		CheckinInterval:   &metav1.Duration{Duration: interval},
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
