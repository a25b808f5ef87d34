package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ImportStatus records the last import of a manager-initiated Cluster, so that the hub notices changes without reading Secrets
// or calling members. It is absent until the first import, and for Clusters that another component imported.
// +kubebuilder:pruning:PreserveUnknownFields
type ImportStatus struct {
	// KubeConfigSecretVersion is set by the hub to "<uid>/<resourceVersion>" of the kubeconfig Secret it last read.
	// A Secret with this version does not cause another import.
	// +optional
	KubeConfigSecretVersion string `json:"kubeConfigSecretVersion,omitempty"`

	// SettingsHash is set by the hub to a digest of the settings in its configuration that apply to installed agents.
	// +optional
	SettingsHash string `json:"settingsHash,omitempty"`

	// RegistrationKey is set by the hub to the value of key "registration" in Secret fleet-agent-bootstrap. It changes when the agent
	// must register again.
	// +optional
	RegistrationKey string `json:"registration,omitempty"`

	// RegistrationID is set by the hub to the UID of the Cluster and, if an earlier registration became invalid, a slash and the
	// cause. The key changes with this value and with spec.redeployAgentGeneration.
	// +optional
	RegistrationID string `json:"registrationOf,omitempty"`

	// UnlabelledReleases is set by the hub to true if the agent before the last import did not label its Helm releases, such as
	// Fleet's own agent. Until the next heartbeat of an agent that labels them, the hub cannot find all releases on the member.
	// +optional
	UnlabelledReleases bool `json:"unlabelledReleases,omitempty"`

	// Generation is set by the hub to the environment variable GENERATION of the Deployment it installed.
	// +optional
	Generation string `json:"generation,omitempty"`

	// ManifestHash is set by the hub to a digest of the manifest with which it installed the agent, or to "changed" when the agent's Bundle
	// delivers another one. The hub compares it when the agent can no longer apply its Bundle.
	// +optional
	ManifestHash string `json:"manifestHash,omitempty"`

	// PullSecrets is set by the hub to the names of the image pull Secrets it copied to the member.
	// +optional
	PullSecrets []string `json:"pullSecrets,omitempty"`

	// PullSecretsHash is set by the hub to a digest of those Secrets.
	// +optional
	PullSecretsHash string `json:"pullSecretsHash,omitempty"`

	// AgentNamespace is set by the hub to the namespace of the member in which it last installed the agent.
	// +optional
	AgentNamespace string `json:"agentNamespace,omitempty"`

	// ReplacedCluster is set by the hub to "<namespace>/<name>/<digest of the UID>" of another Cluster of this hub whose agent an import of this one
	// has replaced. While that Cluster is disconnected, its condition Imported says so.
	// +optional
	ReplacedCluster string `json:"replacedCluster,omitempty"`

	// ReplacedTime is set by the hub to the time of that import.
	// +optional
	ReplacedTime metav1.Time `json:"replacedTime,omitzero"`

	// AgentLost is set by the hub to the last heartbeat of the agent when it finds that the import of another Cluster has replaced the agent. If there has
	// been none since, the hub installs the agent again when it finds that no longer.
	// +optional
	AgentLost metav1.Time `json:"agentLost,omitzero"`

	// StaleAgentNamespaces is set by the hub to namespaces of the member in which an agent was installed earlier. The hub
	// removes that agent after the first heartbeat of the new one.
	// +optional
	StaleAgentNamespaces []string `json:"staleAgentNamespaces,omitempty"`

	// APIServerURLFromSecret and APIServerCAFromSecret are set by the hub to true if the values come from the kubeconfig
	// Secret and not from the hub's configuration.
	// +optional
	APIServerURLFromSecret bool `json:"apiServerURLFromSecret,omitempty"`
	// APIServerCAFromSecret: see APIServerURLFromSecret.
	// +optional
	APIServerCAFromSecret bool `json:"apiServerCAFromSecret,omitempty"`

	// Time is set by the hub to the time of the last successful import.
	// +optional
	Time metav1.Time `json:"time,omitzero"`
}
