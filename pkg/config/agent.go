package config

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Agent is the configuration of an agent: the value of key "config" of ConfigMap "fleet-agent" beside it. The hub writes
// it on an import, the chart fleet-agent otherwise. Every field is optional.
type Agent struct {
	// Labels are sent with a registration; the hub decides which of them the Cluster gets.
	Labels map[string]string `json:"labels,omitempty"`
	// ClientID is the identity sent with a registration; empty means the UID of the namespace kube-system.
	ClientID string `json:"clientID,omitempty"`
	// AgentTLSMode is one of TLSModeStrict and TLSModeSystemStore; empty means TLSModeSystemStore.
	AgentTLSMode TLSMode `json:"agentTLSMode,omitempty"`
	// GarbageCollectionInterval is how often the agent cleans up; 0 means 15 minutes.
	GarbageCollectionInterval metav1.Duration `json:"garbageCollectionInterval,omitempty"`
}

// ParseAgent reads the document; the empty one is all defaults. Unknown keys are ignored, and so is a duration that is
// none or much too short: a typo in it must not keep a cluster from registering.
func ParseAgent(document string) (Agent, error) {
	var raw map[string]any
	if err := yaml.Unmarshal([]byte(document), &raw); err != nil {
		return Agent{}, fmt.Errorf("the agent's configuration (ConfigMap fleet-agent, key config) is neither JSON nor YAML: %w", err)
	}
	_ = dropBadDurations(raw)
	var agent Agent
	if err := decode(raw, &agent); err != nil {
		return Agent{}, fmt.Errorf("the agent's configuration (ConfigMap fleet-agent, key config): %w", err)
	}
	return agent, nil
}

// Document is the configuration as ParseAgent reads it.
func (a Agent) Document() (string, error) {
	data, err := json.Marshal(a)
	return string(data), err
}
