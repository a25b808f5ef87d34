// Package config has the configuration documents of hub and agent, and the store of the configuration that a hub uses.
package config

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// TLSMode selects the CAs that an agent trusts, and that the hub trusts when it calls a member.
type TLSMode string

const (
	// TLSModeStrict trusts only the configured CA.
	TLSModeStrict TLSMode = "strict"
	// TLSModeSystemStore also trusts the CAs of the operating system.
	TLSModeSystemStore TLSMode = "system-store"
)

// DefaultCheckinInterval is the default time between two heartbeats of an agent that writes them to the status of its Cluster.
const DefaultCheckinInterval = 15 * time.Minute

// DefaultLeaseInterval is the default time between two heartbeats of an agent that renews a Lease.
const DefaultLeaseInterval = time.Minute

// DefaultLastSeenInterval is the default time between two writes of status.agent.lastSeen of an agent that renews a Lease.
const DefaultLastSeenInterval = 15 * time.Minute

// DefaultMissedCheckins is the default of AgentMissedCheckins.
const DefaultMissedCheckins = 3

// leastMissedCheckins is 2 because agents add jitter to their heartbeats: the next one may be later than one interval.
const leastMissedCheckins = 2

// Hub is the configuration of the hub: the value of key "config" of ConfigMap "fleet-controller" in the system namespace, as JSON or
// YAML. The chart writes it, a person may edit it, and the hub applies a change without a restart. Every field is optional.
type Hub struct {
	// AgentImage is the image of the agents; empty means the agent of this version.
	AgentImage string `json:"agentImage,omitempty"`
	// AgentImagePullPolicy is the pull policy of AgentImage; empty leaves it to Kubernetes.
	AgentImagePullPolicy string `json:"agentImagePullPolicy,omitempty"`
	// SystemDefaultRegistry is the registry of AgentImage; a Cluster's privateRepoURL replaces it.
	SystemDefaultRegistry string `json:"systemDefaultRegistry,omitempty"`
	// AgentCheckinInterval is the time between two heartbeats of an agent, at least LeastCheckinInterval; 0 means DefaultLeaseInterval for
	// agents that renew a Lease, and DefaultCheckinInterval for agents that write the status of their Cluster.
	AgentCheckinInterval metav1.Duration `json:"agentCheckinInterval,omitempty"`
	// AgentLastSeenInterval is the time after which the hub writes status.agent.lastSeen of an agent that renews a Lease if nothing else
	// has changed, at least LeastLastSeenInterval; 0 means DefaultLastSeenInterval.
	AgentLastSeenInterval metav1.Duration `json:"agentLastSeenInterval,omitempty"`
	// AgentRemovalTimeout limits how long the deletion of a Cluster waits until the agent, and what it deployed, is removed from the member, at least
	// LeastRemovalTimeout; 0 means the default of the hub's process, 30 seconds unless an embedder sets another.
	AgentRemovalTimeout metav1.Duration `json:"agentRemovalTimeout,omitempty"`
	// AgentMissedCheckins is the number of intervals without a heartbeat after which a Cluster is disconnected, at least 2; 0 means
	// DefaultMissedCheckins.
	AgentMissedCheckins int `json:"agentMissedCheckins,omitempty"`
	// ManageAgent is false if agents are not updated after their registration; unset means true.
	ManageAgent *bool `json:"manageAgent,omitempty"`
	// APIServerURL is the URL of the hub for agents. The kubeconfig Secret of a Cluster may have another one.
	APIServerURL string `json:"apiServerURL,omitempty"`
	// APIServerCA is the PEM bundle with the CA of APIServerURL, in base64; empty means a CA that the systems of the agents trust.
	APIServerCA []byte `json:"apiServerCA,omitempty"`
	// Bootstrap configures the registration of the hub's own cluster.
	Bootstrap Bootstrap `json:"bootstrap,omitempty"`
	// IgnoreClusterRegistrationLabels drops the labels that agents send for a new Cluster.
	IgnoreClusterRegistrationLabels bool `json:"ignoreClusterRegistrationLabels,omitempty"`
	// AgentTLSMode is one of TLSModeStrict and TLSModeSystemStore; empty means TLSModeSystemStore.
	AgentTLSMode TLSMode `json:"agentTLSMode,omitempty"`
	// GarbageCollectionInterval is Agent.GarbageCollectionInterval, at least LeastGarbageCollectionInterval; 0 leaves it to the agent
	// (15 minutes).
	GarbageCollectionInterval metav1.Duration `json:"garbageCollectionInterval,omitempty"`
	// AgentWorkers are the sizes of the agents' worker pools; empty leaves them to the agent.
	AgentWorkers AgentWorkers `json:"agentWorkers,omitempty"`
	// ImagePullSecrets are Secrets of the system namespace that are copied to members for their agents.
	ImagePullSecrets []LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// ImagePullSecretWorkspaces are the workspaces whose members get copies of ImagePullSecrets; unset means all.
	ImagePullSecretWorkspaces []string `json:"imagePullSecretWorkspaces,omitempty"`
	// Members limit the addresses to which the hub connects for the kubeconfigs of members.
	Members Members `json:"members,omitzero"`
	// Bundles limits what the Bundles of a workspace can cost.
	Bundles Bundles `json:"bundles,omitzero"`
	// Registration has the requirements for agents that register.
	Registration Registration `json:"registration,omitempty"`
	// Clusternet configures a hub that serves Clusternet agents.
	Clusternet ClusternetAgents `json:"clusternet,omitzero"`
}

// LocalObjectReference names an object in a namespace known from the context.
type LocalObjectReference struct {
	Name string `json:"name"`
}

// AgentWorkers are numbers in strings; an empty string means the default of the agent.
type AgentWorkers struct {
	BundleDeployment string `json:"bundledeployment,omitempty"`
	Drift            string `json:"drift,omitempty"`
}

// Bootstrap configures the registration of the cluster that the hub runs in.
type Bootstrap struct {
	// Namespace of the Cluster "local"; empty or "-" means the hub does not register itself.
	Namespace string `json:"namespace,omitempty"`
	// AgentNamespace is the namespace of the local agent; empty means the system namespace.
	AgentNamespace string `json:"agentNamespace,omitempty"`
	// LocalAgentDisabled installs no agent for the Cluster "local".
	LocalAgentDisabled bool `json:"localAgentDisabled,omitempty"`
	// ClusterLabels are put on the Cluster "local".
	ClusterLabels map[string]string `json:"clusterLabels,omitempty"`
	// Repo, Secret, Paths (comma-separated) and Branch describe a GitRepo "bootstrap" that the hub creates too.
	Repo   string `json:"repo,omitempty"`
	Secret string `json:"secret,omitempty"`
	Paths  string `json:"paths,omitempty"`
	Branch string `json:"branch,omitempty"`
}

// Enabled reports whether the hub registers its own cluster.
func (b Bootstrap) Enabled() bool { return b.Namespace != "" && b.Namespace != "-" }

// TLSMode returns AgentTLSMode or its default.
func (h Hub) TLSMode() TLSMode { return cmp.Or(h.AgentTLSMode, TLSModeSystemStore) }

// LastSeenInterval returns AgentLastSeenInterval or its default.
func (h Hub) LastSeenInterval() time.Duration {
	if h.AgentLastSeenInterval.Duration <= 0 {
		return DefaultLastSeenInterval
	}
	return h.AgentLastSeenInterval.Duration
}

// CheckinInterval returns AgentCheckinInterval or its default for an agent that does not report its interval.
func (h Hub) CheckinInterval() time.Duration {
	if h.AgentCheckinInterval.Duration <= 0 {
		return DefaultCheckinInterval
	}
	return h.AgentCheckinInterval.Duration
}

// MissedCheckins returns AgentMissedCheckins or its default.
func (h Hub) MissedCheckins() int { return cmp.Or(h.AgentMissedCheckins, DefaultMissedCheckins) }

// PullSecretNames are the names of ImagePullSecrets.
func (h Hub) PullSecretNames() []string {
	names := make([]string, 0, len(h.ImagePullSecrets))
	for _, ref := range h.ImagePullSecrets {
		names = append(names, ref.Name)
	}
	return names
}

// CopiesPullSecretsTo reports whether the members of a workspace get copies of ImagePullSecrets.
func (h Hub) CopiesPullSecretsTo(workspace string) bool {
	return len(h.ImagePullSecretWorkspaces) == 0 || slices.Contains(h.ImagePullSecretWorkspaces, workspace)
}

// A shorter duration is probably a typo, such as 15ms for 15m: ten thousand agents would overload the hub with heartbeats, and each of
// them the API server of its member with comparisons.
const (
	// LeastCheckinInterval is the shortest time between two heartbeats of an agent.
	LeastCheckinInterval = time.Second
	// LeastLastSeenInterval is the shortest time between two writes of status.agent.lastSeen of an agent that renews a Lease.
	LeastLastSeenInterval = time.Minute
	// LeastRemovalTimeout is the shortest time for which the deletion of a Cluster can be configured to wait for its member.
	LeastRemovalTimeout = 10 * time.Second
	// LeastGarbageCollectionInterval is the least Hub.GarbageCollectionInterval: each comparison reads all deployed objects.
	LeastGarbageCollectionInterval = time.Minute
)

// optionalDurations are the keys whose invalid values have no effect except a warning: a typo in one of them must not stop registrations.
// A value is 0, which means the default, or at least as long as least.
var optionalDurations = []struct {
	key   string
	least time.Duration
}{
	{"agentCheckinInterval", LeastCheckinInterval},
	{"agentLastSeenInterval", LeastLastSeenInterval},
	{"agentRemovalTimeout", LeastRemovalTimeout},
	{"gitClientTimeout", 0}, // of Fleet's own controllers; the hub only checks it
	{"garbageCollectionInterval", LeastGarbageCollectionInterval},
}

// ParseHub reads the document. It ignores unknown keys, because other components use the same document, and returns a warning for those within
// the keys that only the hub has, and for those that are almost the same as a known key. An invalid or much too short duration has no effect, except a
// warning; any other invalid value is an error that names the key. An empty document is an error: it would lift all limits, and rather is a mistake than
// meant.
func ParseHub(document string) (Hub, []string, error) { return Hub{}.ParseChange(document) }

// ParseChange is ParseHub for a document that replaces h. It keeps the durations for which the document has invalid values: with the defaults, the hub
// would change every agent.
func (h Hub) ParseChange(document string) (Hub, []string, error) {
	var raw map[string]any
	if err := yaml.Unmarshal([]byte(document), &raw); err != nil {
		return Hub{}, nil, fmt.Errorf("the hub's configuration is neither JSON nor YAML: %w", err)
	}
	if raw == nil {
		return Hub{}, nil, errors.New("the hub's configuration is missing or empty: write {} for the defaults")
	}
	kept, err := keys(h)
	if err != nil {
		return Hub{}, nil, err
	}
	warnings := slices.Concat(replaceBadDurations(raw, kept), mistypedKeys(raw, kept), unknownKeys(raw))
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
	if errors.As(err, &notBase64) { // encoding/json does not name the field; only this one has bytes
		return fmt.Errorf("apiServerCA is not base64 of a PEM certificate: %w", err)
	}
	return err
}

func (h Hub) validate() error {
	if h.MissedCheckins() < leastMissedCheckins {
		return fmt.Errorf("agentMissedCheckins is %d: it must be at least %d, because heartbeats come a little earlier or later than configured, or 0 for the default",
			h.AgentMissedCheckins, leastMissedCheckins)
	}
	if server := strings.TrimSpace(h.APIServerURL); server != "" {
		if problem := CheckServerURL(server); problem != "" {
			return fmt.Errorf("apiServerURL is unusable: %s", problem) // without the value, which may contain a password
		}
	}
	if err := errors.Join(h.Registration.validate(), h.Clusternet.validate(), h.Bundles.validate()); err != nil {
		return err
	}
	switch h.TLSMode() {
	case TLSModeStrict, TLSModeSystemStore:
		return nil
	}
	return fmt.Errorf("agentTLSMode is %q: it must be %q or %q", h.AgentTLSMode, TLSModeStrict, TLSModeSystemStore)
}

// unknownKeys returns a warning for each of the hub's own keys that contains a key which the hub does not know, such as a mistyped limit.
func unknownKeys(raw map[string]any) (warnings []string) {
	own := map[string]any{"registration": &Registration{}, "members": &Members{}, "bundles": &Bundles{}}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		into := own[strings.ToLower(key)] // encoding/json ignores the case of keys
		data, err := json.Marshal(raw[key])
		if into == nil || err != nil {
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil && strings.Contains(err.Error(), "unknown field") {
			warnings = append(warnings, fmt.Sprintf("%s has a key that the hub does not know, and that has no effect: %s", key, strings.TrimPrefix(err.Error(), "json: ")))
		}
	}
	return warnings
}

// otherKeys are the keys of the document that other components, or agents, read.
var otherKeys = []string{"clientID", "gitClientTimeout", "githubURLPrefix", "labels", "webhookReceiverURL"}

// mistypedKeys returns a warning for each key that is not known, and differs from a known key by one or two characters. If that key of the hub is missing, it
// adds the value that is kept.
func mistypedKeys(raw, kept map[string]any) (warnings []string) {
	known := slices.Clone(otherKeys)
	for field := range reflect.TypeFor[Hub]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		known = append(known, name)
	}
	given := slices.Sorted(maps.Keys(raw))
	for _, key := range given {
		if hasKey(known, key) {
			continue
		}
		for _, name := range known {
			if distance(strings.ToLower(key), strings.ToLower(name)) <= 2 {
				before, isKept := kept[name]
				if isKept && !hasKey(given, name) {
					raw[name] = before
				}
				warnings = append(warnings, fmt.Sprintf("key %s is not known, and has no effect: is it %s?", key, name))
				break
			}
		}
	}
	return warnings
}

// hasKey reports whether a key is among others. Like encoding/json, it ignores the case of keys.
func hasKey(keys []string, key string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return strings.EqualFold(k, key) })
}

// distance returns how many characters have to be inserted, removed or replaced to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// replaceBadDurations replaces invalid durations by those that are kept, and removes the others.
func replaceBadDurations(raw, kept map[string]any) (warnings []string) {
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
		if value == float64(0) || value == nil { // the default
			continue
		}
		if before, isKept := kept[optional.key]; isKept {
			raw[optional.key] = before
		}
		warnings = append(warnings, fmt.Sprintf("%s is %v, which is %s: it has no effect, the value from before stays, or the default", optional.key, value, why))
	}
	return warnings
}

// keys returns a configuration as a document.
func keys(hub Hub) (raw map[string]any, err error) {
	data, err := json.Marshal(hub)
	if err == nil {
		err = json.Unmarshal(data, &raw)
	}
	return raw, err
}

// badDuration returns what is wrong with a value; "" if it is valid.
func badDuration(value any, least time.Duration) string {
	text, isText := value.(string)
	duration, err := time.ParseDuration(text)
	switch {
	case !isText || err != nil || duration < 0:
		return `not a duration such as "15m"`
	case duration != 0 && duration < least:
		return fmt.Sprintf("shorter than %s", least)
	}
	return ""
}

// SameForAgents reports whether agents reach the hub in the same way with both configurations.
func (h Hub) SameForAgents(other Hub) bool {
	return h.APIServerURL == other.APIServerURL && slices.Equal(h.APIServerCA, other.APIServerCA)
}

// Bundles limits what the hub stores for the Bundles of one workspace.
type Bundles struct {
	// WorkspaceLimitMiB is how many MiB the hub stores for the Clusters of one workspace in BundleDeployments of more than 16 KiB, with their Helm
	// values, and in copies of Secrets and ConfigMaps. Smaller BundleDeployments count beyond 300 MB. 0 means DefaultWorkspaceLimitMiB.
	WorkspaceLimitMiB int `json:"workspaceLimitMiB,omitempty"`
	// WorkspaceMemoryMiB is how many MiB the Bundles, Clusters, ClusterGroups, requests and tokens of one workspace take in the memory of the hub, beyond
	// 8 KiB each; unset means DefaultWorkspaceMemoryMiB, and 0 means no limit.
	WorkspaceMemoryMiB *int `json:"workspaceMemoryMiB,omitempty"`
}

// DefaultWorkspaceLimitMiB is a quarter of etcd's default quota of 2 GiB. An update doubles what is stored, until etcd is compacted.
const DefaultWorkspaceLimitMiB = 512

// DefaultWorkspaceMemoryMiB is more than the 15.5 MiB that 1,000 Bundles take whose Helm values of 30 KiB hardly become smaller when they are packed. With the
// 16 MiB of options that the hub computes from Bundles, a workspace takes less than 37 MiB in use, and 50 MiB of resident memory.
const DefaultWorkspaceMemoryMiB = 18

// NoMemoryLimit is WorkspaceMemory without a limit.
const NoMemoryLimit = math.MaxInt64

// maxWorkspaceLimitMiB is a tebibyte, more than any API server stores.
const maxWorkspaceLimitMiB = 1 << 20

// WorkspaceLimit returns the limit in bytes.
func (b Bundles) WorkspaceLimit() int64 {
	return int64(cmp.Or(b.WorkspaceLimitMiB, DefaultWorkspaceLimitMiB)) << 20
}

// WorkspaceMemory returns the limit of the memory in bytes.
func (b Bundles) WorkspaceMemory() int64 {
	limit := ptr.Deref(b.WorkspaceMemoryMiB, DefaultWorkspaceMemoryMiB)
	if limit == 0 {
		return NoMemoryLimit
	}
	return int64(limit) << 20
}

func (b Bundles) validate() error {
	for _, limit := range []struct {
		key    string
		value  int
		ifZero string
	}{
		{"workspaceLimitMiB", b.WorkspaceLimitMiB, fmt.Sprint("the default of ", DefaultWorkspaceLimitMiB)}, {"workspaceMemoryMiB", ptr.Deref(b.WorkspaceMemoryMiB, DefaultWorkspaceMemoryMiB), "no limit"},
	} {
		if limit.value < 0 || limit.value > maxWorkspaceLimitMiB {
			return fmt.Errorf("bundles.%s is %d: it must be from 1 to %d, or 0 for %s", limit.key, limit.value, maxWorkspaceLimitMiB, limit.ifZero)
		}
	}
	return nil
}

// Members limit the addresses to which the hub connects for kubeconfigs, which users of workspaces write.
type Members struct {
	// AllowedCIDRs are ranges of addresses to which the hub connects although they are denied by default or by DeniedCIDRs.
	AllowedCIDRs CIDRs `json:"allowedCIDRs,omitempty"`
	// DeniedCIDRs are ranges of addresses to which the hub does not connect, in addition to loopback, link-local, unspecified and
	// multicast addresses and the metadata services of cloud providers.
	DeniedCIDRs CIDRs `json:"deniedCIDRs,omitempty"`
	// AllowProxyURL lets kubeconfigs name a proxy in proxy-url.
	AllowProxyURL bool `json:"allowProxyURL,omitempty"`
	// Unknown is true if the hub has started with an invalid or missing configuration that does not say which addresses are denied: it then
	// connects to no member, except its own cluster.
	Unknown bool `json:"-"`
}

// CIDRs are ranges of addresses, such as 10.0.0.0/8.
type CIDRs []netip.Prefix

// UnmarshalJSON reads a list of strings.
func (c *CIDRs) UnmarshalJSON(data []byte) error {
	var texts []string
	if err := json.Unmarshal(data, &texts); err != nil {
		return fmt.Errorf("members.allowedCIDRs and members.deniedCIDRs must be lists of CIDRs such as 10.0.0.0/8: %w", err)
	}
	*c = nil
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("members.allowedCIDRs and members.deniedCIDRs must be lists of CIDRs such as 10.0.0.0/8: %q is none", text)
		}
		*c = append(*c, prefix.Masked())
	}
	return nil
}
