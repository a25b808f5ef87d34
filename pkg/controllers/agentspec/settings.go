package agentspec

import (
	"fmt"
	"reflect"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Settings is what a Cluster's spec says about how its agent is run, in the form in which the status remembers it.
type Settings struct {
	envVars, affinity, resources, tolerations, scheduling string // digests, empty when unset
	privateRepoURL                                        string
	hostNetwork                                           bool
}

// WantedSettings is what the spec asks for.
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

// InstalledSettings is what the agent was last given, by an import or by its Bundle.
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

// SameScheduling says whether both have the same scheduling customisation, which only an import can deliver: its objects are
// not in the Bundle.
func (s Settings) SameScheduling(other Settings) bool { return s.scheduling == other.scheduling }

// WithSchedulingOf is s but for the scheduling customisation.
func (s Settings) WithSchedulingOf(other Settings) Settings {
	s.scheduling = other.scheduling
	return s
}

// Record writes into the status that the agent was given these settings.
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

// Digests of environment variables that are not set. Only for them does the status of other releases hold a digest even
// then; writing the same one keeps such a release, should it come back, from installing the agent again.
const (
	unsetHash     = "a7408a8b23aff882d8b95165eb24c3a6b519468539eb2b3072f529cb"
	emptyListHash = "23f497f643e37257c3f7e54f049d8829c41103bb29bf8c0ba0d1df0a"
)

// hashUnlessUnset counts nil and empty alike: which of them arrives depends on the client that wrote the Cluster.
func hashUnlessUnset(setting any) string {
	value := reflect.Indirect(reflect.ValueOf(setting))
	if !value.IsValid() || value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0 {
		return ""
	}
	hash, err := registration.StatusHash(setting)
	if err != nil {
		panic(fmt.Sprintf("settings of the API always marshal: %v", err))
	}
	return hash
}
