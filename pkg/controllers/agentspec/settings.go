package agentspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Settings are the agent's settings in the spec of a Cluster, in the form in which the status records them.
type Settings struct {
	envVars, affinity, resources, tolerations, scheduling string // digests, empty when unset
	privateRepoURL                                        string
	hostNetwork                                           bool
}

// WantedSettings are the settings in the spec.
func WantedSettings(spec fleet.ClusterSpec) Settings {
	return Settings{
		envVars:        hashUnlessUnset(spec.AgentEnvVars),
		affinity:       hashUnlessUnset(spec.AgentAffinity),
		resources:      hashUnlessUnset(spec.AgentResources),
		tolerations:    hashUnlessUnset(spec.AgentTolerations),
		scheduling:     hashUnlessUnset(spec.AgentSchedulingCustomization),
		privateRepoURL: spec.PrivateRepoURL,
		hostNetwork:    spec.HostNetwork != nil && *spec.HostNetwork,
	}
}

// maxSettings limits the settings of an agent in a Cluster, in bytes of their JSON. Rendering allocates up to a thousand times as much
// memory, and the API server admits settings of a megabyte.
const maxSettings = 64 << 10

// MaxSettingsMemory limits the memory that these settings take in the caches of the hub: empty elements of a list take up to thirty times their
// JSON.
const MaxSettingsMemory = 4 * maxSettings

// CheckSize returns an error if the agent's settings in the spec are too large. Call it before they are rendered or hashed.
func CheckSize(spec fleet.ClusterSpec) error {
	if spec.MetadataTooLarge {
		return errors.New(registration.TooLarge(spec.Excess, registration.MetadataTooLarge))
	}
	if spec.SettingsTooLarge {
		return errors.New(registration.TooLarge(spec.Excess, fmt.Sprintf(
			"the settings of the agent in the spec take more than %d KiB of memory; at most %d bytes as JSON are accepted", MaxSettingsMemory>>10, maxSettings)))
	}
	total, largest, of := 0, 0, ""
	for _, setting := range []struct {
		field string
		value any
	}{
		{"agentEnvVars", spec.AgentEnvVars},
		{"agentTolerations", spec.AgentTolerations},
		{"agentAffinity", spec.AgentAffinity},
		{"agentResources", spec.AgentResources},
		{"agentSchedulingCustomization", spec.AgentSchedulingCustomization},
		{"agentPullSecrets", spec.AgentPullSecrets},
		{"agentNamespace", spec.AgentNamespace},
		{"privateRepoURL", spec.PrivateRepoURL},
	} {
		if isUnset(setting.value) {
			continue
		}
		data, err := json.Marshal(setting.value)
		if err != nil {
			return fmt.Errorf("spec.%s cannot be encoded: %w", setting.field, err)
		}
		if total += len(data); len(data) > largest {
			largest, of = len(data), setting.field
		}
	}
	if total <= maxSettings {
		return nil
	}
	return fmt.Errorf("the settings of the agent in the spec have %d bytes as JSON, %d of them in spec.%s; at most %d are accepted", total, largest, of, maxSettings)
}

// InstalledSettings are the settings that the agent got last, by an import or by its Bundle.
func InstalledSettings(status fleet.ClusterStatus) Settings {
	s := Settings{
		envVars:        status.AgentEnvVarsHash,
		affinity:       status.AgentAffinityHash,
		resources:      status.AgentResourcesHash,
		tolerations:    status.AgentTolerationsHash,
		scheduling:     status.AgentSchedulingCustomizationHash,
		privateRepoURL: status.AgentPrivateRepoURL,
		hostNetwork:    status.AgentHostNetwork,
	}
	if s.envVars == unsetHash || s.envVars == emptyListHash {
		s.envVars = ""
	}
	return s
}

// SameScheduling reports whether both have the same scheduling customization. Only an import can change it: its objects are not in the
// Bundle.
func (s Settings) SameScheduling(other Settings) bool { return s.scheduling == other.scheduling }

// WithSchedulingOf returns s with the scheduling customization of other.
func (s Settings) WithSchedulingOf(other Settings) Settings {
	s.scheduling = other.scheduling
	return s
}

// Record writes into the status that the agent got these settings.
func (s Settings) Record(status *fleet.ClusterStatus) {
	status.AgentEnvVarsHash = s.envVars
	if s.envVars == "" {
		status.AgentEnvVarsHash = unsetHash
	}
	status.AgentAffinityHash = s.affinity
	status.AgentResourcesHash = s.resources
	status.AgentTolerationsHash = s.tolerations
	status.AgentSchedulingCustomizationHash = s.scheduling
	status.AgentPrivateRepoURL = s.privateRepoURL
	status.AgentHostNetwork = s.hostNetwork
}

// Digests of environment variables that are not set. Unlike for the other fields, Fleet's hub writes a digest even if nothing is set. Muster writes
// the same digest, so that Fleet's hub does not install the agent again after a return to it.
const (
	unsetHash     = "a7408a8b23aff882d8b95165eb24c3a6b519468539eb2b3072f529cb"
	emptyListHash = "23f497f643e37257c3f7e54f049d8829c41103bb29bf8c0ba0d1df0a"
)

// hashUnlessUnset treats nil and empty alike: which of them is stored depends on the client that wrote the Cluster.
func hashUnlessUnset(setting any) string {
	if isUnset(setting) {
		return ""
	}
	hash, err := registration.StatusHash(setting)
	if err != nil {
		panic(fmt.Sprintf("settings of an agent cannot be encoded: %v", err))
	}
	return hash
}

func isUnset(setting any) bool {
	value := reflect.Indirect(reflect.ValueOf(setting))
	return !value.IsValid() || value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0
}
