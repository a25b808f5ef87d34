package config

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Agent is the configuration of an agent: the value of key "config" of ConfigMap "fleet-agent" in its namespace. The hub writes it on an
// import, the chart fleet-agent otherwise. Every field is optional.
type Agent struct {
	// Labels are sent with a registration; the hub decides which of them the Cluster gets.
	Labels map[string]string `json:"labels,omitempty"`
	// ClientID is the identity sent with a registration; empty means the UID of the namespace kube-system.
	ClientID string `json:"clientID,omitempty"`
	// AgentTLSMode is one of TLSModeStrict and TLSModeSystemStore; empty means TLSModeSystemStore.
	AgentTLSMode TLSMode `json:"agentTLSMode,omitempty"`
	// GarbageCollectionInterval is the interval at which the agent compares all releases with its cluster, in addition to the comparisons after
	// events, and looks for releases without a BundleDeployment; 0 means 15 minutes.
	GarbageCollectionInterval metav1.Duration `json:"garbageCollectionInterval,omitempty"`
}

// ParseAgent reads the document; an empty one has all defaults. It ignores unknown keys, and invalid or much too short durations: a
// typo in one of them must not prevent a registration.
func ParseAgent(document string) (Agent, error) {
	if err := registration.RefuseAliases([]byte(document)); err != nil {
		return Agent{}, fmt.Errorf("the agent's configuration (ConfigMap fleet-agent, key config): %w", err)
	}
	var raw map[string]any
	if err := yaml.Unmarshal([]byte(document), &raw); err != nil {
		return Agent{}, fmt.Errorf("the agent's configuration (ConfigMap fleet-agent, key config) is neither JSON nor YAML: %w", err)
	}
	_ = replaceBadDurations(raw, nil)
	var agent Agent
	if err := decode(raw, &agent); err != nil {
		return Agent{}, fmt.Errorf("the agent's configuration (ConfigMap fleet-agent, key config): %w", err)
	}
	return agent, nil
}

// Document returns the document that ParseAgent reads.
func (a Agent) Document() (string, error) {
	data, err := json.Marshal(a)
	return string(data), err
}
