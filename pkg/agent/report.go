package agent

import (
	"context"
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/registration"
)

// report is status.agent (fleet.AgentStatus) as one heartbeat sends it. A field that is nil is null in the patch: what could not be read this
// time must not stay there from the time before.
type report struct {
	LastSeen          string           `json:"lastSeen"`
	Namespace         string           `json:"namespace"`
	CheckinInterval   *metav1.Duration `json:"checkinInterval"`
	Version           *string          `json:"version"`
	Generation        *string          `json:"generation"`
	KubernetesVersion *string          `json:"kubernetesVersion"`
	*nodeSums
	APIServer *apiServerReport `json:"apiServer"`
	ClockSkew *metav1.Duration `json:"clockSkew"`
	Hub       *hubReport       `json:"hub"`

	Instance          *string      `json:"instance"`
	CredentialExpires *metav1.Time `json:"credentialExpires"`
	Registration      *string      `json:"registration"`
	Vouches           *string      `json:"vouches"`
}

// apiServerReport is fleet.AgentAPIServer as a patch.
type apiServerReport struct {
	Ready   bool    `json:"ready"`
	Message *string `json:"message"`
}

// hubReport is fleet.AgentHub as a patch.
type hubReport struct {
	APIServerURL    *string `json:"apiServerURL"`
	APIServerCAHash *string `json:"apiServerCAHash"`
	AgentTLSMode    *string `json:"agentTLSMode"`
	Pending         *string `json:"pending"`
}

// textOrNull is nil for no text.
func textOrNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// report takes stock of the cluster and of the agent. It never fails: what cannot be read is left out.
func (l *life) report(ctx context.Context, s *session, pending string) report {
	health := l.member.takeStock(ctx, l.config.Timing.Request)
	return report{
		LastSeen:          l.config.Clock.Now().UTC().Format(time.RFC3339),
		Namespace:         l.config.Namespace,
		CheckinInterval:   &metav1.Duration{Duration: l.config.CheckinInterval},
		Version:           textOrNull(l.config.Version),
		Generation:        textOrNull(l.config.Generation),
		KubernetesVersion: textOrNull(health.version),
		nodeSums:          health.nodes,
		APIServer:         health.apiServer,
		ClockSkew:         s.clockSkew(),
		Hub:               s.hubReport(pending),
		Instance:          textOrNull(l.instance),
		CredentialExpires: s.credentialExpires(),
		Registration:      textOrNull(s.credential.request),
		Vouches:           textOrNull(l.vouching.name()),
	}
}

// credentialExpires is nil for a credential that is not renewed.
func (s *session) credentialExpires() *metav1.Time {
	t, limited := termOf(s.token())
	if !limited {
		return nil
	}
	return &metav1.Time{Time: t.expires}
}

func (s *session) clockSkew() *metav1.Duration {
	if s.hub.skew == nil {
		return nil
	}
	skew, known := s.hub.skew.seconds()
	if !known {
		return nil
	}
	return &metav1.Duration{Duration: skew}
}

func (s *session) hubReport(pending string) *hubReport {
	w := s.credential.way()
	return &hubReport{
		APIServerURL:    textOrNull(w.server),
		APIServerCAHash: textOrNull(registration.CAHash(w.ca)),
		AgentTLSMode:    textOrNull(string(tlsMode(w.mode))),
		Pending:         textOrNull(pending),
	}
}

// patch is a merge patch, which works whether the Cluster has a status already or not.
func (r report) patch() ([]byte, error) {
	return json.Marshal(map[string]any{"status": map[string]any{"agent": r}})
}
