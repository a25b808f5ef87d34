package v1alpha1

import (
	"github.com/rancher/wrangler/v3/pkg/genericcondition"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Registered",type=string,JSONPath=`.status.conditions[?(@.type=="Registered")].status`
// +kubebuilder:printcolumn:name="Connected",type=string,JSONPath=`.status.conditions[?(@.type=="Connected")].status`
// +kubebuilder:printcolumn:name="Bundles-Ready",type=string,JSONPath=`.status.display.readyBundles`
// +kubebuilder:printcolumn:name="Last-Seen",type=date,JSONPath=`.status.agent.lastSeen`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.status!="True")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`

// Cluster is a Kubernetes cluster that is, or will become, a member of the fleet. A person creates it with a kubeconfig or a
// clientID. If an agent registers with a clientID that no Cluster has, the hub creates the Cluster.
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by the owner of the cluster. The hub sets an empty clientID of a cluster with a kubeconfig, and
	// removes an empty agentSchedulingCustomization.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec ClusterSpec `json:"spec,omitempty"`
	// Status is what the hub and the agent of the cluster report.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:pruning:PreserveUnknownFields
	Status ClusterStatus `json:"status,omitempty"`
}

// ClusterSpec is the desired state of a cluster and its agent, set by a person or a management server.
type ClusterSpec struct {
	// Paused is set by a person to stop updates of the cluster's BundleDeployments. Registration continues.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Quarantined is set by a person, with "muster quarantine" or kubectl, to lock the agent of the cluster out at once: it
	// keeps its ServiceAccount and loses all rights, except to read Contents whose names it knows. The hub sends it nothing, and grants
	// no request for the cluster. Deployed workloads keep running. Setting it to false restores the rights.
	// +optional
	Quarantined bool `json:"quarantined,omitempty"`

	// ClientID is the identity with which an agent registers: a request with this clientID belongs to this Cluster. A person sets
	// it to prepare a Cluster for an agent. For a cluster with a kubeconfig, the hub sets an empty clientID to a random string.
	// It must not change afterwards.
	// +optional
	// +nullable
	ClientID string `json:"clientID,omitempty"`

	// KubeConfigSecret is set by a person to the name of a Secret whose key "value" contains a kubeconfig of the cluster. If it
	// is set, the hub installs the agent. If it is empty, a person installs the agent on the cluster.
	// +optional
	// +nullable
	KubeConfigSecret string `json:"kubeConfigSecret,omitempty"`

	// KubeConfigSecretNamespace is set by a person to the namespace of KubeConfigSecret. Empty means the namespace of
	// the Cluster.
	// +optional
	// +nullable
	KubeConfigSecretNamespace string `json:"kubeConfigSecretNamespace,omitempty"`

	// RedeployAgentGeneration is changed by a person to install the agent again, with a new registration. The hub copies it to
	// status.agentDeployedGeneration after the import.
	// +optional
	RedeployAgentGeneration int64 `json:"redeployAgentGeneration,omitempty"`

	// AgentEnvVars is set by a person to the environment variables that are appended to the agent's container.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxItems=1000
	AgentEnvVars []corev1.EnvVar `json:"agentEnvVars,omitempty"`

	// AgentNamespace is set by a person to the namespace on the cluster in which the agent runs. It is also the scope of the
	// agent. Empty means the hub's system namespace. The namespace should have no other workloads: its ServiceAccount default gets no token
	// any more, and its NetworkPolicy default-allow-all belongs to the agent.
	// +optional
	// +nullable
	AgentNamespace string `json:"agentNamespace,omitempty"`

	// PrivateRepoURL is set by a person to the registry of the agent's image. Empty means the registry in the hub's
	// configuration.
	// +optional
	// +nullable
	PrivateRepoURL string `json:"privateRepoURL,omitempty"`

	// TemplateValues is set by a person to values that templates in Bundles may use. Registration ignores them.
	// +optional
	// +nullable
	TemplateValues *GenericMap `json:"templateValues,omitempty"`

	// AgentTolerations is set by a person to tolerations that are appended to the default tolerations of the agent.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxItems=1000
	AgentTolerations []corev1.Toleration `json:"agentTolerations,omitempty"`

	// AgentAffinity is set by a person to replace the affinity of the agent's pod. Absent means that nodes labelled
	// fleet.cattle.io/agent=true are preferred.
	// +optional
	// +nullable
	AgentAffinity *corev1.Affinity `json:"agentAffinity,omitempty"`

	// AgentResources is set by a person to the resources of the agent's container. Absent means none.
	// +optional
	// +nullable
	AgentResources *corev1.ResourceRequirements `json:"agentResources,omitempty"`

	// HostNetwork is set by a person to run the agent's Pod in the network of its node. This is necessary if the agent deploys
	// the cluster network. The Deployment then uses the strategy Recreate. Absent means false.
	// +optional
	// +nullable
	HostNetwork *bool `json:"hostNetwork,omitempty"`

	// AgentSchedulingCustomization is set by a person to give the agent a PriorityClass and a PodDisruptionBudget. Absent means neither. It has no
	// effect without KubeConfigSecret, because only the hub can create them.
	// +optional
	// +nullable
	AgentSchedulingCustomization *AgentSchedulingCustomization `json:"agentSchedulingCustomization,omitempty"`

	// AgentPullSecrets is set by a person to the image pull Secrets of the agent. Absent means those in the hub's configuration
	// if it gives them to the workspace; the hub copies them to a cluster that it imports. On another cluster, and if they are in a list, the Secrets
	// must exist already. An empty list means none.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxItems=1000
	AgentPullSecrets *[]corev1.LocalObjectReference `json:"agentPullSecrets,omitempty"`

	// SettingsTooLarge is not part of the API: in the caches of the hub it stands for settings of the agent that take too much memory.
	SettingsTooLarge bool `json:"-"`

	// TemplateValuesTooLarge is not part of the API: in the caches of the hub it stands for templateValues that take too much memory.
	TemplateValuesTooLarge bool `json:"-"`

	// MetadataTooLarge is not part of the API: in the caches of the hub it stands for labels or annotations that take too much memory.
	MetadataTooLarge bool `json:"-"`

	// Excess is not part of the API: in the caches of the hub it says that parts were dropped because the workspace has no room for them.
	Excess MemoryExcess `json:"-"`
}

// AgentSchedulingCustomization is set by a person to say how the agent's pod is scheduled and evicted.
// +kubebuilder:pruning:PreserveUnknownFields
type AgentSchedulingCustomization struct {
	// PriorityClass is set by a person to create a PriorityClass for the agent.
	// +optional
	PriorityClass *PriorityClassSpec `json:"priorityClass,omitempty"`

	// PodDisruptionBudget is set by a person to create a PodDisruptionBudget for the agent.
	// +optional
	PodDisruptionBudget *PodDisruptionBudgetSpec `json:"podDisruptionBudget,omitempty"`
}

// PriorityClassSpec is set by a person to the content of the agent's PriorityClass.
// +kubebuilder:pruning:PreserveUnknownFields
type PriorityClassSpec struct {
	// Value is set by a person to the priority of the agent's pod; higher means more important.
	// +optional
	Value int `json:"value,omitempty"`

	// PreemptionPolicy is set by a person to Never or PreemptLowerPriority. Absent means the latter.
	// +optional
	PreemptionPolicy *corev1.PreemptionPolicy `json:"preemptionPolicy,omitempty"`
}

// PodDisruptionBudgetSpec is set by a person and says how many pods of the agent may be evicted at a time. Only one of
// its fields may be set to something other than "0"; with neither set, no pod may be evicted.
// +kubebuilder:pruning:PreserveUnknownFields
type PodDisruptionBudgetSpec struct {
	// MinAvailable is set by a person to the number or percentage of Pods that must stay available.
	// +optional
	MinAvailable string `json:"minAvailable,omitempty"`

	// MaxUnavailable is set by a person to the number or percentage of Pods that may be unavailable.
	// +optional
	MaxUnavailable string `json:"maxUnavailable,omitempty"`
}

// ClusterStatus is the state of a cluster. Several components write it; each writes its own fields.
type ClusterStatus struct {
	// Conditions are set by the hub whenever one changes: Processed, Imported, Registered, Connected, Reconciled, Ready and
	// ReleasesManaged; see the constants of each. With disableBundles, Fleet's own controllers may write Processed and Ready as well.
	// +optional
	Conditions []genericcondition.GenericCondition `json:"conditions,omitempty"`

	// Namespace is set by the hub, once, to the namespace of the cluster's BundleDeployments and of the ServiceAccount of its
	// agent. The hub computes it from the namespace and name of the Cluster, and never relies on the stored value.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// Summary is set by the hub to the number of the cluster's BundleDeployments by state.
	// +optional
	Summary BundleSummary `json:"summary,omitempty"`

	// ResourceCounts is set by the hub to the number of deployed resources by state.
	// +optional
	ResourceCounts ResourceCounts `json:"resourceCounts,omitempty"`

	// ReadyGitRepos is set by the hub to the number of GitRepos with a BundleDeployment that is ready on this cluster.
	// +optional
	ReadyGitRepos int `json:"readyGitRepos"`

	// DesiredReadyGitRepos is set by the hub to the number of GitRepos with a BundleDeployment on this cluster.
	// +optional
	DesiredReadyGitRepos int `json:"desiredReadyGitRepos"`

	// ReadyHelmOps is set by the hub to the number of HelmOps with a BundleDeployment that is ready on this cluster.
	// +optional
	ReadyHelmOps int `json:"readyHelmOps"`

	// DesiredReadyHelmOps is set by the hub to the number of HelmOps with a BundleDeployment on this cluster.
	// +optional
	DesiredReadyHelmOps int `json:"desiredReadyHelmOps"`

	// AgentEnvVarsHash is set by the hub, when spec.agentEnvVars changes, to the SHA-224 of the value from which the agent's
	// manifest was last rendered.
	// +optional
	AgentEnvVarsHash string `json:"agentEnvVarsHash,omitempty"`

	// AgentPrivateRepoURL is set by the hub to the spec.privateRepoURL from which the agent's manifest was last rendered.
	// +optional
	AgentPrivateRepoURL string `json:"agentPrivateRepoURL,omitempty"`

	// AgentHostNetwork is set by the hub to the spec.hostNetwork from which the agent's manifest was last rendered.
	// +optional
	AgentHostNetwork bool `json:"agentHostNetwork,omitempty"`

	// AgentDeployedGeneration is set by the hub after an import to the spec.redeployAgentGeneration of that import. A difference
	// between the two causes an import.
	// +optional
	// +nullable
	AgentDeployedGeneration *int64 `json:"agentDeployedGeneration,omitempty"`

	// AgentMigrated is set to true by the hub after an import. False starts an import.
	// +optional
	AgentMigrated bool `json:"agentMigrated,omitempty"`

	// AgentNamespaceMigrated is set to true by the hub after an import. False starts an import.
	// +optional
	AgentNamespaceMigrated bool `json:"agentNamespaceMigrated,omitempty"`

	// CattleNamespaceMigrated is set to true by the hub after an import. False starts an import.
	// +optional
	CattleNamespaceMigrated bool `json:"cattleNamespaceMigrated,omitempty"`

	// AgentAffinityHash is set by the hub, when spec.agentAffinity changes, to the SHA-224 of the value from which the agent's
	// manifest was last rendered; empty when unset.
	// +optional
	AgentAffinityHash string `json:"agentAffinityHash,omitempty"`

	// AgentResourcesHash is set by the hub, when spec.agentResources changes, to the SHA-224 of the value from which the agent's
	// manifest was last rendered; empty when unset.
	// +optional
	AgentResourcesHash string `json:"agentResourcesHash,omitempty"`

	// AgentTolerationsHash is set by the hub, when spec.agentTolerations changes, to the SHA-224 of the value from which the
	// agent's manifest was last rendered; empty when unset.
	// +optional
	AgentTolerationsHash string `json:"agentTolerationsHash,omitempty"`

	// AgentSchedulingCustomizationHash is set by the hub, when spec.agentSchedulingCustomization changes, to the SHA-224 of the
	// value from which the agent's manifest was last rendered; empty when unset.
	// +optional
	AgentSchedulingCustomizationHash string `json:"agentSchedulingCustomizationHash,omitempty"`

	// AgentConfigChanged causes an import, which clears it. The hub sets it to true while it imports the Cluster again, for whatever reason, so
	// that the import is continued even if its reason ends, or the hub restarts. Another component may set it too.
	// +optional
	AgentConfigChanged bool `json:"agentConfigChanged,omitempty"`

	// APIServerURL is set by the hub after an import to the URL of the hub's API server in the import.
	// +optional
	// +nullable
	APIServerURL string `json:"apiServerURL,omitempty"`

	// APIServerCAHash is set by the hub after an import to the SHA-224 of the hub's CA in the import.
	// +optional
	// +nullable
	APIServerCAHash string `json:"apiServerCAHash,omitempty"`

	// AgentTLSMode is set by the hub after an import to the TLS mode in the import: with "strict" the agent trusts only the CA of
	// the import, with "system-store" also those of the operating system.
	// +optional
	// +nullable
	AgentTLSMode string `json:"agentTLSMode,omitempty"`

	// GarbageCollectionInterval is set by the hub after an import to the interval in the import at which the agent compares all
	// releases with the cluster again.
	// +optional
	GarbageCollectionInterval *metav1.Duration `json:"garbageCollectionInterval,omitempty"`

	// Display is set by the hub to texts for user interfaces.
	// +optional
	Display ClusterDisplay `json:"display,omitempty"`

	// Agent is set by the agent at every heartbeat, or by the hub to the report in the Lease of the agent. The hub empties it when an
	// import lets the agent register again, and when it removes the agent of its own cluster.
	// +optional
	Agent AgentStatus `json:"agent,omitempty"`

	// Import is set by the hub when it has installed the agent of a manager-initiated Cluster.
	// +optional
	Import *ImportStatus `json:"import,omitempty"`

	// Scheduled is set by another component when a schedule applies to the cluster. Registration ignores it.
	// +optional
	Scheduled bool `json:"scheduled,omitempty"`

	// ActiveSchedule is set by another component while a schedule allows deployments. Registration ignores it.
	// +optional
	ActiveSchedule bool `json:"activeSchedule,omitempty"`
}

// ClusterDisplay is set by the hub and has texts for user interfaces about a cluster.
// +kubebuilder:pruning:PreserveUnknownFields
type ClusterDisplay struct {
	// ReadyBundles is set by the hub to the numbers of ready and of all BundleDeployments, such as "2/3".
	// +optional
	ReadyBundles string `json:"readyBundles,omitempty"`

	// State is set by the hub to the worst state of a BundleDeployment, or to WaitCheckIn before the first heartbeat of an agent.
	// +optional
	State string `json:"state,omitempty"`
}

// AgentStatus is the heartbeat of a cluster's agent.
// +kubebuilder:pruning:PreserveUnknownFields
type AgentStatus struct {
	// LastSeen is set by the agent at every heartbeat to the time of its own clock, or by the hub to the time of a renewal of the
	// agent's Lease. The hub sets it to null when it empties status.agent.
	// +optional
	// +nullable
	LastSeen metav1.Time `json:"lastSeen"`

	// Namespace is set by the agent at every heartbeat to the namespace it runs in on its cluster.
	// +optional
	// +nullable
	Namespace string `json:"namespace"`

	// CheckinInterval is set by the agent to the time between two heartbeats. If it is absent, as from agents of other versions,
	// the hub uses its own configuration.
	// +optional
	CheckinInterval *metav1.Duration `json:"checkinInterval,omitempty"`

	// Version is set by the agent to its own version.
	// +optional
	Version string `json:"version,omitempty"`

	// Generation is set by the agent to its environment variable GENERATION. It shows the hub whether the agent runs with the
	// Deployment of the import or with that of its Bundle.
	// +optional
	Generation string `json:"generation,omitempty"`

	// KubernetesVersion is set by the agent to the version of its cluster's API server, such as "v1.36.3".
	// +optional
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`

	// Nodes is set by the agent to the number of its cluster's nodes; absent if it could not count them.
	// +optional
	Nodes *AgentNodes `json:"nodes,omitempty"`

	// Capacity is set by the agent to the sum of cpu, memory and pods that its cluster's nodes have.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// Allocatable is set by the agent to the sum of cpu, memory and pods that pods may use on its cluster's nodes.
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`

	// APIServer is set by the agent to whether its cluster's own API server is ready.
	// +optional
	APIServer *AgentAPIServer `json:"apiServer,omitempty"`

	// ClockSkew is set by the agent to the time by which its clock is ahead of the hub's clock; it is negative if the clock is
	// behind. It is absent if it is less than one second, the resolution of an HTTP date.
	// +optional
	ClockSkew *metav1.Duration `json:"clockSkew,omitempty"`

	// Hub is set by the agent to the address, CA and TLS mode with which it reaches the hub.
	// +optional
	Hub *AgentHub `json:"hub,omitempty"`

	// Instance is set by the agent to the name of its pod and a random string generated at its start. If two values alternate, two
	// agents use one identity.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Instance string `json:"instance,omitempty"`

	// CredentialExpires is set by the agent to the expiry time of its credential. Absent means that the credential does not
	// expire, or that the agent does not renew it.
	// +optional
	CredentialExpires *metav1.Time `json:"credentialExpires,omitempty"`

	// PossessionProof is set by the agent, which registers again, to the name of its new ClusterRegistration. The agent writes it with
	// its current credential, which proves to the hub that the request is the agent's own.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PossessionProof string `json:"vouches,omitempty"`

	// Registration is the name of the ClusterRegistration whose credential the agent uses. The hub sets it for an agent with a Lease; another
	// agent sets it itself. The hub deletes earlier requests of the agent only after that, so that the agent keeps a working credential
	// if the new one is lost.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Registration string `json:"registration,omitempty"`

	// KeptReleases is set by the agent while it keeps Helm releases for which the hub has no BundleDeployment, because the hub was restored from
	// a backup that is older than their Bundles, or is not the hub that deployed them.
	// +optional
	KeptReleases *AgentKeptReleases `json:"keptReleases,omitempty"`

	// DeploymentsStalled is set by the agent to the reason why it deploys nothing, when that has lasted for a minute. The text is cut after 1024
	// bytes, and then ends with three dots.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	DeploymentsStalled string `json:"deploymentsStalled,omitempty"`
}

// AgentKeptReleases are Helm releases that stay without a BundleDeployment.
// +kubebuilder:pruning:PreserveUnknownFields
type AgentKeptReleases struct {
	// Count is set by the agent to the number of releases.
	// +optional
	Count int `json:"count"`

	// Names is set by the agent to the releases in alphabetical order, as namespace/name, separated by a comma and a space. The text is cut
	// after 2048 bytes, and then ends with three dots.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Names string `json:"names,omitempty"`
}

// AgentNodes counts the nodes of a cluster.
// +kubebuilder:pruning:PreserveUnknownFields
type AgentNodes struct {
	// Count is set by the agent to the number of nodes.
	// +optional
	Count int `json:"count"`

	// Ready is set by the agent to the number of nodes whose condition Ready is True.
	// +optional
	Ready int `json:"ready"`
}

// AgentAPIServer is the health of the API server of an agent's own cluster.
// +kubebuilder:pruning:PreserveUnknownFields
type AgentAPIServer struct {
	// Ready is set by the agent to true if /readyz succeeds.
	// +optional
	Ready bool `json:"ready"`

	// Message is set by the agent to the answer of /readyz if it does not succeed.
	// +optional
	Message string `json:"message,omitempty"`
}

// AgentHub describes an agent's connection to its hub.
// +kubebuilder:pruning:PreserveUnknownFields
type AgentHub struct {
	// APIServerURL is set by the agent to the address of its requests.
	// +optional
	APIServerURL string `json:"apiServerURL,omitempty"`

	// APIServerCAHash is set by the agent to the digest of its configured CA of the hub, in the form of status.apiServerCAHash.
	// +optional
	APIServerCAHash string `json:"apiServerCAHash,omitempty"`

	// AgentTLSMode is set by the agent to the TLS mode with which it verifies the hub's certificate.
	// +optional
	AgentTLSMode string `json:"agentTLSMode,omitempty"`

	// Pending is set by the agent to a configured change of this connection that does not work, with the reason; the
	// agent keeps this connection and retries the change.
	// +optional
	Pending string `json:"pending,omitempty"`
}
