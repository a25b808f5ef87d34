package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ImportStatus is what the hub remembers of the last import of a manager-initiated Cluster, so that it notices changes
// without reading Secrets or calling members. It is absent until the first import, and for Clusters imported by others.
// +kubebuilder:pruning:PreserveUnknownFields
type ImportStatus struct {
	// KubeConfigSecretVersion is set by the hub to "<uid>/<resourceVersion>" of the kubeconfig Secret it last looked at. A
	// Secret of the same version is not read again.
	// +optional
	KubeConfigSecretVersion string `json:"kubeConfigSecretVersion,omitempty"`

	// SettingsHash is set by the hub to a digest of those settings of its configuration that agents are installed with.
	// +optional
	SettingsHash string `json:"settingsHash,omitempty"`

	// Registration is set by the hub to what tells the agent, by key "registration" of Secret fleet-agent-bootstrap, which
	// registration it should hold. It changes when the agent has to register anew.
	// +optional
	Registration string `json:"registration,omitempty"`

	// RegistrationOf is set by the hub to what Registration was made for: the UID of the Cluster, and behind a slash what had
	// made the registration before it void, if anything. While it stays the same, Registration does.
	// +optional
	RegistrationOf string `json:"registrationOf,omitempty"`

	// Generation is set by the hub to the environment variable GENERATION of the Deployment it installed.
	// +optional
	Generation string `json:"generation,omitempty"`

	// ManifestHash is set by the hub to a digest of how the agent is run that it installed. What the agent's Bundle changed
	// since is not in it: it is what counts when the agent cannot take its Bundle any more.
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

	// StaleAgentNamespaces is set by the hub to namespaces of the member in which an agent was installed earlier. They are
	// cleaned once the new agent has checked in.
	// +optional
	StaleAgentNamespaces []string `json:"staleAgentNamespaces,omitempty"`

	// APIServerURLFromSecret and APIServerCAFromSecret are set by the hub to whether the kubeconfig Secret, not the hub's
	// configuration, said where the agent reaches the hub.
	// +optional
	APIServerURLFromSecret bool `json:"apiServerURLFromSecret,omitempty"`
	// APIServerCAFromSecret: see APIServerURLFromSecret.
	// +optional
	APIServerCAFromSecret bool `json:"apiServerCAFromSecret,omitempty"`

	// Time is set by the hub to when the last import succeeded.
	// +optional
	Time metav1.Time `json:"time,omitzero"`
}
