// Package config is the typed configuration of hub and agent, and watching it.
package config

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TLSMode says which CAs an agent, and the hub when it calls a member, accept.
type TLSMode string

const (
	// TLSModeStrict accepts only the configured CA.
	TLSModeStrict TLSMode = "strict"
	// TLSModeSystemStore accepts the CAs of the operating system as well.
	TLSModeSystemStore TLSMode = "system-store"
)

// DefaultCheckinInterval is how often an agent reports when nothing else is configured.
const DefaultCheckinInterval = 15 * time.Minute

// DefaultMissedCheckins is how many check-ins an agent may miss when nothing else is configured.
const DefaultMissedCheckins = 3

// leastMissedCheckins: agents spread their check-ins, so the next one may be later than one interval.
const leastMissedCheckins = 2

// Hub is the configuration of the hub: the value of key "config" of ConfigMap "fleet-controller" in the system
// namespace, as JSON or YAML. The chart writes it, a person may edit it, the hub applies a change without a restart.
// Every field is optional.
type Hub struct {
	// AgentImage is the image of the agents; empty means the agent of this release.
	AgentImage string `json:"agentImage,omitempty"`
	// AgentImagePullPolicy is the pull policy of AgentImage; empty leaves it to Kubernetes.
	AgentImagePullPolicy string `json:"agentImagePullPolicy,omitempty"`
	// SystemDefaultRegistry is the registry AgentImage is written with; a Cluster's privateRepoURL replaces it.
	SystemDefaultRegistry string `json:"systemDefaultRegistry,omitempty"`
	// AgentCheckinInterval is how often agents report, at least LeastCheckinInterval; 0 means DefaultCheckinInterval.
	AgentCheckinInterval metav1.Duration `json:"agentCheckinInterval,omitempty"`
	// AgentMissedCheckins is how many check-ins an agent may miss before its Cluster is shown as disconnected, at least 2; 0
	// means DefaultMissedCheckins.
	AgentMissedCheckins int `json:"agentMissedCheckins,omitempty"`
	// ManageAgent set to false leaves agents alone after their registration; unset means true.
	ManageAgent *bool `json:"manageAgent,omitempty"`
	// APIServerURL is where agents reach the hub, unless the kubeconfig Secret of their Cluster says otherwise.
	APIServerURL string `json:"apiServerURL,omitempty"`
	// APIServerCA is the PEM bundle that signs APIServerURL's certificate (base64 in the document); empty means a CA the
	// agents' systems know.
	APIServerCA []byte `json:"apiServerCA,omitempty"`
	// Bootstrap says whether and how the hub registers its own cluster.
	Bootstrap Bootstrap `json:"bootstrap,omitempty"`
	// IgnoreClusterRegistrationLabels drops all labels agents send when their Cluster is created.
	IgnoreClusterRegistrationLabels bool `json:"ignoreClusterRegistrationLabels,omitempty"`
	// AgentTLSMode is one of TLSModeStrict and TLSModeSystemStore; empty means TLSModeSystemStore.
	AgentTLSMode TLSMode `json:"agentTLSMode,omitempty"`
	// GarbageCollectionInterval is how often agents clean up, at least LeastGarbageCollectionInterval; 0 leaves it to the agent (15
	// minutes).
	GarbageCollectionInterval metav1.Duration `json:"garbageCollectionInterval,omitempty"`
	// AgentWorkers are the sizes of the agents' worker pools; empty leaves them to the agent.
	AgentWorkers AgentWorkers `json:"agentWorkers,omitempty"`
	// ImagePullSecrets are Secrets of the system namespace that are copied to members for their agents.
	ImagePullSecrets []LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// Registration says what the hub asks of agents that register.
	Registration Registration `json:"registration,omitempty"`
}

// LocalObjectReference names an object in a namespace known from the context.
type LocalObjectReference struct {
	Name string `json:"name"`
}

// AgentWorkers are numbers, as text, since an empty one means "the agent's default".
type AgentWorkers struct {
	BundleDeployment string `json:"bundledeployment,omitempty"`
	Drift            string `json:"drift,omitempty"`
}

// Bootstrap describes how the hub registers the cluster it runs in.
type Bootstrap struct {
	// Namespace of the Cluster "local"; empty or "-" means the hub does not register itself.
	Namespace string `json:"namespace,omitempty"`
	// AgentNamespace is where the local agent runs; empty means the system namespace.
	AgentNamespace string `json:"agentNamespace,omitempty"`
	// LocalAgentDisabled keeps the Cluster "local" without an agent.
	LocalAgentDisabled bool `json:"localAgentDisabled,omitempty"`
	// ClusterLabels are put on the Cluster "local".
	ClusterLabels map[string]string `json:"clusterLabels,omitempty"`
	// Repo, Secret, Paths (comma-separated) and Branch describe a GitRepo "bootstrap" to create beside it.
	Repo   string `json:"repo,omitempty"`
	Secret string `json:"secret,omitempty"`
	Paths  string `json:"paths,omitempty"`
	Branch string `json:"branch,omitempty"`
}

// Enabled says whether the hub registers its own cluster.
func (b Bootstrap) Enabled() bool { return b.Namespace != "" && b.Namespace != "-" }

// TLSMode is the mode in force: what is configured, or the chart's default.
func (h Hub) TLSMode() TLSMode {
	if h.AgentTLSMode == "" {
		return TLSModeSystemStore
	}
	return h.AgentTLSMode
}

// CheckinInterval is how often agents report: what is configured, or the default.
func (h Hub) CheckinInterval() time.Duration {
	if h.AgentCheckinInterval.Duration <= 0 {
		return DefaultCheckinInterval
	}
	return h.AgentCheckinInterval.Duration
}

// MissedCheckins is how many check-ins an agent may miss: what is configured, or the default.
func (h Hub) MissedCheckins() int {
	if h.AgentMissedCheckins == 0 {
		return DefaultMissedCheckins
	}
	return h.AgentMissedCheckins
}

// PullSecretNames are the names of ImagePullSecrets.
func (h Hub) PullSecretNames() []string {
	names := make([]string, 0, len(h.ImagePullSecrets))
	for _, ref := range h.ImagePullSecrets {
		names = append(names, ref.Name)
	}
	return names
}

// What is shorter is taken for a typo, 15ms for 15m, say: ten thousand agents would flood the hub with check-ins, and each of
// them the API server of its member with comparisons.
const (
	// LeastCheckinInterval is the shortest time between two check-ins of an agent.
	LeastCheckinInterval = time.Second
	// LeastGarbageCollectionInterval is the shortest time between two rounds in which an agent cleans up and compares everything.
	LeastGarbageCollectionInterval = time.Minute
)

// optionalDurations are the keys whose value may be nonsense without costing the whole document: a typo in a comfort
// setting must not stop registrations. Beside 0, which means the default, a value is at least so long.
var optionalDurations = []struct {
	key   string
	least time.Duration
}{
	{"agentCheckinInterval", LeastCheckinInterval},
	{"gitClientTimeout", 0},
	{"garbageCollectionInterval", LeastGarbageCollectionInterval},
}

// ParseHub reads the document. Unknown keys are ignored, for other components have theirs here. A duration that is none,
// or much too short, is left out with a warning; anything else that does not fit is an error that names the key.
func ParseHub(document string) (Hub, []string, error) {
	var raw map[string]any
	if err := yaml.Unmarshal([]byte(document), &raw); err != nil {
		return Hub{}, nil, fmt.Errorf("the hub's configuration is neither JSON nor YAML: %w", err)
	}
	warnings := dropBadDurations(raw)
	var hub Hub
	if err := decode(raw, &hub); err != nil {
		return Hub{}, nil, fmt.Errorf("the hub's configuration: %w", err)
	}
	if err := hub.validate(); err != nil {
		return Hub{}, nil, fmt.Errorf("the hub's configuration: %w", err)
	}
	return hub, warnings, nil
}

func decode(raw map[string]any, into any) error {
	data, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	err = json.Unmarshal(data, into)
	var notBase64 base64.CorruptInputError
	if errors.As(err, &notBase64) { // the one field of bytes; encoding/json does not say which it was
		return fmt.Errorf("apiServerCA is not base64 of a PEM certificate: %w", err)
	}
	return err
}

func (h Hub) validate() error {
	if h.MissedCheckins() < leastMissedCheckins {
		return fmt.Errorf("agentMissedCheckins is %d: it must be at least %d, for agents check in a little earlier or later than agreed, or 0 for the default",
			h.AgentMissedCheckins, leastMissedCheckins)
	}
	if err := h.Registration.validate(); err != nil {
		return err
	}
	switch h.TLSMode() {
	case TLSModeStrict, TLSModeSystemStore:
		return nil
	}
	return fmt.Errorf("agentTLSMode is %q: it must be %q or %q", h.AgentTLSMode, TLSModeStrict, TLSModeSystemStore)
}

func dropBadDurations(raw map[string]any) (warnings []string) {
	for _, optional := range optionalDurations {
		value, present := raw[optional.key]
		if !present {
			continue
		}
		why := badDuration(value, optional.least)
		if why == "" {
			continue
		}
		delete(raw, optional.key)
		if value != float64(0) && value != nil {
			warnings = append(warnings, fmt.Sprintf("%s is %v, which is %s; it is left at its default", optional.key, value, why))
		}
	}
	return warnings
}

// badDuration says what is wrong with a value; "" when nothing is.
func badDuration(value any, least time.Duration) string {
	text, isText := value.(string)
	duration, err := time.ParseDuration(text)
	switch {
	case !isText || err != nil || duration < 0:
		return `no duration such as "15m"`
	case duration != 0 && duration < least:
		return fmt.Sprintf("shorter than %s", least)
	}
	return ""
}

// SameForAgents says whether two configurations tell agents the same way to the hub.
func (h Hub) SameForAgents(other Hub) bool {
	return h.APIServerURL == other.APIServerURL && slices.Equal(h.APIServerCA, other.APIServerCA)
}
