package v1alpha1

// BundleState is the state of a BundleDeployment, or the worst one of many.
type BundleState string

// States of a BundleDeployment, from good to bad.
const (
	// Ready means deployed, with all resources ready.
	Ready BundleState = "Ready"
	// NotReady means deployed, with a resource that is not ready.
	NotReady BundleState = "NotReady"
	// Pending means that the target has no BundleDeployment yet, because the rollout strategy postpones it.
	Pending BundleState = "Pending"
	// OutOfSync means that the staged options are newer than those of the agent, for example while the Bundle is paused.
	OutOfSync BundleState = "OutOfSync"
	// Modified means that resources on the cluster differ from what was deployed.
	Modified BundleState = "Modified"
	// WaitApplied means that the agent has not yet deployed the current deployment ID.
	WaitApplied BundleState = "WaitApplied"
	// ErrApplied means that the deployment failed, or waits for another Bundle.
	ErrApplied BundleState = "ErrApplied"
)

// BundleSummary counts BundleDeployments by state. The hub sets it within about a second after a change.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleSummary struct {
	// NotReady is the number of BundleDeployments in state NotReady.
	// +optional
	NotReady int `json:"notReady,omitempty"`

	// WaitApplied is the number of BundleDeployments in state WaitApplied.
	// +optional
	WaitApplied int `json:"waitApplied,omitempty"`

	// ErrApplied is the number of BundleDeployments in state ErrApplied.
	// +optional
	ErrApplied int `json:"errApplied,omitempty"`

	// OutOfSync is the number of BundleDeployments in state OutOfSync.
	// +optional
	OutOfSync int `json:"outOfSync,omitempty"`

	// Modified is the number of BundleDeployments in state Modified.
	// +optional
	Modified int `json:"modified,omitempty"`

	// Ready is the number of BundleDeployments in state Ready.
	// +optional
	Ready int `json:"ready"`

	// Pending is the number of BundleDeployments in state Pending.
	// +optional
	Pending int `json:"pending,omitempty"`

	// DesiredReady is the number of all BundleDeployments.
	// +optional
	DesiredReady int `json:"desiredReady"`

	// NonReadyResources lists BundleDeployments that are not ready, at most 10, with the reasons.
	// +optional
	// +nullable
	NonReadyResources []NonReadyResource `json:"nonReadyResources,omitempty"`
}

// NonReadyResource is set by the hub and says why a BundleDeployment is not ready.
// +kubebuilder:pruning:PreserveUnknownFields
type NonReadyResource struct {
	// Name is the name of the Bundle in the status of a Cluster, and "namespace/name" of the Cluster in the status of a Bundle.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// State is the state of the BundleDeployment.
	// +optional
	// +nullable
	State BundleState `json:"bundleState,omitempty"`

	// Message is the reason, from the conditions of the BundleDeployment; empty if the state says it all.
	// +optional
	// +nullable
	Message string `json:"message,omitempty"`

	// ModifiedStatus lists resources that differ from what was deployed, as the agent reports them; without patches in Clusters and ClusterGroups.
	// +optional
	// +nullable
	ModifiedStatus []ModifiedStatus `json:"modifiedStatus,omitempty"`

	// NonReadyStatus lists resources that are not ready, as the agent reports them.
	// +optional
	// +nullable
	NonReadyStatus []NonReadyStatus `json:"nonReadyStatus,omitempty"`
}

// ResourceCounts counts deployed resources by state. The agent sets it for a BundleDeployment, the hub sums it up for Clusters and
// ClusterGroups.
// +kubebuilder:pruning:PreserveUnknownFields
type ResourceCounts struct {
	// Ready is the number of resources that are ready.
	// +optional
	Ready int `json:"ready"`

	// DesiredReady is the number of resources that were deployed.
	// +optional
	DesiredReady int `json:"desiredReady"`

	// WaitApplied is the number of resources that are not deployed yet.
	// +optional
	WaitApplied int `json:"waitApplied"`

	// Modified is the number of resources that differ from what was deployed.
	// +optional
	Modified int `json:"modified"`

	// Orphaned is the number of resources that should be deleted.
	// +optional
	Orphaned int `json:"orphaned"`

	// Missing is the number of deployed resources that do not exist.
	// +optional
	Missing int `json:"missing"`

	// Unknown is the number of resources whose state is not known.
	// +optional
	Unknown int `json:"unknown"`

	// NotReady is the number of resources that are not ready.
	// +optional
	NotReady int `json:"notReady"`
}

// NonReadyStatus is set by an agent and says which resource is not ready.
// +kubebuilder:pruning:PreserveUnknownFields
type NonReadyStatus struct {
	// UID is set by the agent to the UID of the resource.
	// +optional
	// +nullable
	UID string `json:"uid,omitempty"`

	// Kind is set by the agent to the kind of the resource.
	// +optional
	// +nullable
	Kind string `json:"kind,omitempty"`

	// APIVersion is set by the agent to the API version of the resource.
	// +optional
	// +nullable
	APIVersion string `json:"apiVersion,omitempty"`

	// Namespace is set by the agent to the namespace of the resource.
	// +optional
	// +nullable
	Namespace string `json:"namespace,omitempty"`

	// Name is set by the agent to the name of the resource.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// Summary is set by the agent to the state of the resource.
	// +optional
	// +nullable
	Summary ResourceSummary `json:"summary,omitempty"`
}

// ResourceSummary is set by an agent to the state of one resource.
// +kubebuilder:pruning:PreserveUnknownFields
type ResourceSummary struct {
	// State is set by the agent to a short word such as "in-progress".
	// +optional
	// +nullable
	State string `json:"state,omitempty"`

	// Error is set by the agent to true if the state is an error, for example because a condition of the resource reports one.
	// +optional
	Error bool `json:"error,omitempty"`

	// Transitioning is set by the agent to true while the state is expected to change.
	// +optional
	Transitioning bool `json:"transitioning,omitempty"`

	// Message is set by the agent to the reasons.
	// +optional
	// +nullable
	Message []string `json:"message,omitempty"`
}

// ModifiedStatus is set by an agent and says how a resource differs from what was deployed.
// +kubebuilder:pruning:PreserveUnknownFields
type ModifiedStatus struct {
	// Kind is set by the agent to the kind of the resource.
	// +optional
	// +nullable
	Kind string `json:"kind,omitempty"`

	// APIVersion is set by the agent to the API version of the resource.
	// +optional
	// +nullable
	APIVersion string `json:"apiVersion,omitempty"`

	// Namespace is set by the agent to the namespace of the resource.
	// +optional
	// +nullable
	Namespace string `json:"namespace,omitempty"`

	// Name is set by the agent to the name of the resource.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// Create is set by the agent to true when the resource is missing.
	// +optional
	Create bool `json:"missing,omitempty"`

	// Delete is set by the agent to true when the resource should be gone.
	// +optional
	Delete bool `json:"delete,omitempty"`

	// Exist is set by the agent to true if the resource exists and belongs to another owner.
	// +optional
	Exist bool `json:"exist,omitempty"`

	// Patch is set by the agent to the difference as a JSON merge patch.
	// +optional
	// +nullable
	Patch string `json:"patch,omitempty"`
}
