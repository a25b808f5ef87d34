// Package heartbeat sends heartbeats to the hub, with a report about the agent and its cluster: to a Lease, which the hub copies to status.agent of
// the Cluster, or to that status itself.
package heartbeat

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Heartbeat sends the heartbeats of one agent.
type Heartbeat struct {
	Member *member.Member
	Clock  clock.WithTicker
	Timing timing.Durations
	Log    logrus.FieldLogger
	// Interval is the time between two heartbeats; 0 means the default of package config for the Lease or for the status.
	Interval time.Duration
	// Version and Generation are agent.Config.Version and Generation.
	Version, Generation string
	// Instance distinguishes this process from another one with the same credential.
	Instance string
	// Metrics counts the heartbeats; nil counts none.
	Metrics *AgentMetrics
	// Notes are added to the heartbeats.
	Notes Notes

	// sending is held from the read of the possession proof until the hub has answered, so that an earlier proof, or none, cannot arrive
	// after a later one.
	sending sync.Mutex
	// named is the credential ID that the Lease has. refused is a credential ID that the hub did not let the agent write there. sending guards both.
	named, refused string
}

// Run sends a heartbeat at once, after each interval, and when the Notes ask for one, until ctx ends. It returns an error when the
// rejection of the credential is certain. A heartbeat that fails is retried with backoff, not after the interval, so that after an outage of
// the hub all agents are connected again within minutes.
func (h *Heartbeat) Run(ctx context.Context, use *credential.InUse) error {
	rejections := hubclient.NewRejectionThreshold(h.Timing)
	retries, reported := (*wait.Backoff)(nil), lastReport{}
	for ctx.Err() == nil {
		wake := h.Notes.waker()
		stored := use.Current()
		interval, err := h.send(ctx, use, &reported)
		if h.Metrics != nil {
			h.Metrics.count(err, use.StoredTokenExpires())
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

// send sends one heartbeat and returns the time until the next.
func (h *Heartbeat) send(ctx context.Context, use *credential.InUse, last *lastReport) (time.Duration, error) {
	stored, leaseInterval := use.Current(), cmp.Or(h.Interval, config.DefaultLeaseInterval)
	report := h.report(ctx, use, leaseInterval)
	h.sending.Lock()
	defer h.sending.Unlock()
	notes, now := h.Notes.read(), h.Clock.Now()
	report.Hub.Pending, report.PossessionProof = textOrNull(notes.pendingEndpoint), textOrNull(notes.possessionProof)
	report.KeptReleases, report.DeploymentsStalled = notes.keptReleases, notes.deploymentsStalled

	text, err := last.encode(report)
	if err != nil {
		return leaseInterval, err
	}
	annotations := map[string]any{registration.LeaseProof: report.PossessionProof}
	metadata := map[string]any{"annotations": annotations}
	if text != last.text {
		annotations[registration.LeaseReport] = text
		// This ends the record of the field managers, which nobody needs of a Lease: the API server does not begin it again before an
		// apply. Each renewal then costs it a quarter less CPU.
		metadata["managedFields"] = []any{struct{}{}}
	}
	id := stored.CredentialID()
	namesCredential := id != "" && id != h.named && id != h.refused
	if namesCredential {
		annotations[registration.LeaseCredential] = id
	}
	forLease := map[string]any{
		"metadata": metadata,
		"spec": map[string]any{
			"holderIdentity": h.Instance, "leaseDurationSeconds": max(1, int(leaseInterval.Seconds())), "renewTime": metav1.NewMicroTime(now),
		},
	}
	statusInterval := cmp.Or(h.Interval, config.DefaultCheckinInterval)
	report.CheckinInterval, report.LastSeen = &metav1.Duration{Duration: statusInterval}, now.UTC().Format(time.RFC3339)
	lease, err := h.write(ctx, use, forLease, report)
	if namesCredential && hubclient.RefusedBy(err, registration.LeasePolicy) { // a renewal has replaced the token meanwhile
		h.refused = id
		delete(annotations, registration.LeaseCredential)
		lease, err = h.write(ctx, use, forLease, report)
	}
	if lease != nil {
		// The hub may have made another Lease since the last heartbeat, or was restored from a backup.
		last.text, h.named = lease.Annotations[registration.LeaseReport], lease.Annotations[registration.LeaseCredential]
		if h.named != "" && id != "" && h.named != id && h.refused != id {
			h.Notes.SendNow() // another agent with the same identity may have written it: the hub detects the two by their turns, so write the own ID again
		}
	}
	if lease != nil || err != nil && stored.Lease != "" { // an agent with a Lease waits no longer for a retry than for its next heartbeat
		return leaseInterval, err
	}
	return statusInterval, err
}

// ProvePossession sends the name of a new ClusterRegistration with the credential in use. Only the holder of that credential can do so, which
// proves to the hub that the request is this agent's own. The heartbeats repeat the proof, and after an error the next one is sent at once.
func (h *Heartbeat) ProvePossession(ctx context.Context, use *credential.InUse, request string) error {
	h.sending.Lock()
	defer h.sending.Unlock()
	h.Notes.SetPossessionProof(request)
	_, err := h.write(ctx, use, map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{registration.LeaseProof: request},
	}}, map[string]any{"vouches": request})
	if err != nil {
		h.Notes.SendNow()
	}
	return err
}

// write patches the agent's Lease or, if the hub makes none, status.agent of the Cluster. After a downgrade of the hub, the agent may no longer
// write the Lease, but the status of the Cluster. The Lease is nil if it was not written.
func (h *Heartbeat) write(ctx context.Context, use *credential.InUse, forLease, forStatus any) (*coordinationv1.Lease, error) {
	stored := use.Current()
	if stored.Lease != "" {
		lease, err := use.Conn.PatchLease(ctx, stored.Lease, forLease)
		if err == nil {
			return lease, nil
		}
		if !isWithoutLease(err) {
			return nil, err
		}
	}
	return nil, use.Conn.PatchAgentStatus(ctx, stored.Workspace, stored.ClusterName, forStatus)
}

// isWithoutLease reports whether the hub no longer makes a Lease for this agent. A proxy may answer 403 and 404 for a hub that is down, and the policy
// for Leases answers 403.
func isWithoutLease(err error) bool {
	return (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) && hubclient.FromAPIServer(err) && !hubclient.RefusedBy(err, registration.LeasePolicy)
}

// lastReport is what the agent has written to its Lease. The zero value is ready to use.
type lastReport struct {
	text string // in the Lease on the hub
	skew time.Duration
}

// encode returns the text of a report. It equals the last one if only the last digits of the clock skew have changed.
func (l *lastReport) encode(report statusPatch) (string, error) {
	var skew time.Duration
	if report.ClockSkew != nil {
		skew = report.ClockSkew.Duration
	}
	if (skew - l.skew).Abs() >= fleetstatus.SkewTolerance {
		l.skew = skew
	}
	report.ClockSkew = nil
	if l.skew != 0 {
		report.ClockSkew = &metav1.Duration{Duration: l.skew}
	}
	report.PossessionProof = nil // it has its own annotation
	text, err := json.Marshal(report)
	return string(text), err
}

// statusPatch is status.agent (fleet.AgentStatus) as a merge patch. A nil field is null in the patch and removes the field: an earlier value must
// not stay if the agent could not read it again. A field with omitempty is left out instead, and an earlier value stays.
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

	KeptReleases       json.RawMessage `json:"keptReleases,omitempty"`
	DeploymentsStalled json.RawMessage `json:"deploymentsStalled,omitempty"`
}

// hubReport is fleet.AgentHub as a patch.
type hubReport struct {
	APIServerURL    *string `json:"apiServerURL"`
	APIServerCAHash *string `json:"apiServerCAHash"`
	AgentTLSMode    *string `json:"agentTLSMode"`
	Pending         *string `json:"pending"`
}

// report returns the report without LastSeen and Notes. It leaves out values that cannot be read.
func (h *Heartbeat) report(ctx context.Context, use *credential.InUse, interval time.Duration) statusPatch {
	cluster, stored := readClusterInfo(ctx, h.Member, h.Timing.Request), use.Current()
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
		},
		Instance:          textOrNull(h.Instance),
		CredentialExpires: use.StoredTokenExpires(),
		Registration:      textOrNull(stored.Request),
	}
	if skew, known := use.Conn.ClockSkew(); known {
		r.ClockSkew = &metav1.Duration{Duration: skew}
	}
	return r
}
